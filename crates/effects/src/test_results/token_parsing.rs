//! Parses the numbers, durations and separators in summaries and rows.

/// A number at the start, and the rest.
pub(super) fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits == 0 || digits > 15 {
        return None;
    }
    let value = text[..digits].iter().fold(0, |value, byte| value * 10 + u64::from(byte - b'0'));
    Some((value, &text[digits..]))
}

/// The whole text as a number.
pub(super) fn whole_number(text: &[u8]) -> Option<u64> {
    number(text).filter(|(_, rest)| rest.is_empty()).map(|(value, _)| value)
}

/// A decimal number at the start in thousandths, rounded up, and the rest.
///
/// A comma is a decimal point too, as some locales have it.
pub(super) fn thousandths(text: &[u8]) -> Option<(u64, &[u8])> {
    let (whole, mut rest) = number(text)?;
    let mut value = whole.checked_mul(1000)?;
    if let [b'.' | b',', fraction @ ..] = rest {
        let digits = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits > 0 {
            let mut weight = 100;
            let mut more = false;
            for byte in &fraction[..digits] {
                value += u64::from(byte - b'0') * weight;
                more |= weight == 0 && *byte != b'0';
                weight /= 10;
            }
            value += u64::from(more);
            rest = &fraction[digits..];
        }
    }
    Some((value, rest))
}

/// A duration such as `12ms`, `1.5s`, `< 1 ms`, `2m 3s`, `1:02:03.4` in milliseconds: rounded up,
/// never 0. `None` unless it is the whole text.
pub(super) fn duration(text: &[u8]) -> Option<u64> {
    let mut rest = text.strip_prefix(b"<").unwrap_or(text).trim_ascii();
    if rest.is_empty() {
        return None;
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (value, after) = thousandths(rest)?;
        let after = after.trim_ascii_start();
        let letters = after.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
        let milliseconds = match &after[..letters] {
            b"ns" => value.div_ceil(1_000_000_000),
            b"us" => value.div_ceil(1_000_000),
            b"ms" => value.div_ceil(1000),
            b"s" | b"sec" | b"secs" | b"second" | b"seconds" => value,
            b"m" | b"min" | b"mins" | b"minute" | b"minutes" => value.checked_mul(60)?,
            b"h" | b"hour" | b"hours" => value.checked_mul(3600)?,
            _ => return None,
        };
        total = total.checked_add(milliseconds)?;
        rest = after[letters..].trim_ascii_start();
    }
    Some(total.max(1))
}

/// Seconds without a unit, in milliseconds: rounded up, never 0.
pub(super) fn seconds(text: &[u8]) -> Option<u64> {
    let (value, rest) = thousandths(text.trim_ascii())?;
    // `1e-05`, which some writers print for very short times.
    let tiny = rest.starts_with(b"e-") || rest.starts_with(b"E-");
    if tiny { Some(1) } else { rest.is_empty().then_some(value.max(1)) }
}

/// The first occurrence of `needle`. For short lines this is faster than building a searcher.
pub(super) fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    let anchor = anchor(needle);
    let byte = *needle.get(anchor)?;
    memchr::memchr_iter(byte, text.get(anchor..)?).find(|at| text[*at..].starts_with(needle))
}

/// The last occurrence of `needle`.
pub(super) fn rfind(text: &[u8], needle: &[u8]) -> Option<usize> {
    let anchor = anchor(needle);
    let byte = *needle.get(anchor)?;
    memchr::memrchr_iter(byte, text.get(anchor..)?).find(|at| text[*at..].starts_with(needle))
}

/// The index of a byte that lines rarely contain.
#[inline]
fn anchor(needle: &[u8]) -> usize {
    needle
        .iter()
        .position(|byte| !byte.is_ascii_alphanumeric() && *byte != b' ')
        .unwrap_or_else(|| needle.iter().position(|byte| *byte != b' ').unwrap_or(0))
}

/// `text` up to the last ` (…)`, and its content.
pub(super) fn trailing_parenthesis(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let inner = text.strip_suffix(b")")?;
    let open = rfind(inner, b" (")?;
    Some((inner[..open].trim_ascii_end(), &inner[open + 2..]))
}

/// Splits at the first `separator`.
pub(super) fn split<'a>(text: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = find(text, separator)?;
    Some((&text[..at], &text[at + separator.len()..]))
}

/// Splits at the last `separator`.
pub(super) fn split_last<'a>(text: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = rfind(text, separator)?;
    Some((&text[..at], &text[at + separator.len()..]))
}

/// The parts of `text` between `separator`s, trimmed.
pub(super) fn parts(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    text.split(move |byte| *byte == separator).map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, expected) in [
            ("12ms", Some(12)),
            ("0.1 ms", Some(1)),
            ("0s", Some(1)),
            ("1.5s", Some(1500)),
            ("1.5001s", Some(1501)),
            ("< 1 ms", Some(1)),
            ("2m 3s", Some(123_000)),
            ("0.01 sec", Some(10)),
            ("750us", Some(1)),
            ("1h 1m 1s", Some(3_661_000)),
            ("", None),
            ("s", None),
            ("12", None),
            ("12 parsecs", None),
            ("99999999999999999999s", None),
        ] {
            assert_eq!(duration(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(seconds(b"0.0012"), Some(2));
        assert_eq!(seconds(b"0"), Some(1));
        assert_eq!(seconds(b"8.5e-05"), Some(1));
        assert_eq!(seconds(b"never"), None);
        assert_eq!(seconds(b"1,234"), Some(1234));
    }

    #[test]
    fn pieces() {
        assert_eq!(number(b"12 passed"), Some((12, &b" passed"[..])));
        assert_eq!(number(b"passed"), None);
        assert_eq!(number(b"1234567890123456"), None);
        assert_eq!(
            trailing_parenthesis(b"name (x) (3 ms)"),
            Some((&b"name (x)"[..], &b"3 ms"[..]))
        );
        assert_eq!(trailing_parenthesis(b"name"), None);
    }
}
