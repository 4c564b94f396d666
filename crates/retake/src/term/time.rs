//! Times and amounts as people say them.

use jiff::Timestamp;

/// How long ago something was: `3m ago`.
pub(crate) fn ago(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs();
    match seconds {
        // A clock that was set back must not make a run come from the future.
        ..1 => "just now".to_owned(),
        1..60 => format!("{seconds}s ago"),
        60..3_600 => format!("{}m ago", seconds / 60),
        3_600..86_400 => format!("{}h ago", seconds / 3_600),
        86_400..5_184_000 => format!("{}d ago", seconds / 86_400),
        _ => moment(then).chars().take(10).collect(),
    }
}

/// To the second, in UTC.
pub(crate) fn moment(at: Timestamp) -> String {
    let whole = Timestamp::from_second(at.as_second()).unwrap_or(at);
    whole.to_string()
}

/// A size in bytes, to three digits.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut amount = bytes as f64 / 1024.0;
    let mut unit = 0;
    while amount >= 999.5 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    let digits = if amount < 9.995 { 2 } else { usize::from(amount < 99.95) };
    format!("{amount:.digits$} {}", UNITS[unit])
}

/// `1 run`, `2 runs`, `2 entries`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    match noun.strip_suffix('y') {
        _ if number == 1 => format!("1 {noun}"),
        Some(stem) => format!("{number} {stem}ies"),
        None => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_rounded_down_to_one_unit() {
        let now: Timestamp = "2026-05-01T12:00:00Z".parse().unwrap();
        let say = |then: &str| ago(then.parse().unwrap(), now);
        assert_eq!(say("2026-05-01T12:00:30Z"), "just now");
        assert_eq!(say("2026-05-01T11:59:59Z"), "1s ago");
        assert_eq!(say("2026-05-01T11:56:01Z"), "3m ago");
        assert_eq!(say("2026-04-30T13:00:00Z"), "23h ago");
        assert_eq!(say("2026-04-29T12:00:00Z"), "2d ago");
        assert_eq!(say("2025-04-29T12:00:00Z"), "2025-04-29");
    }

    #[test]
    fn nouns_follow_their_number() {
        assert_eq!(count(1, "entry"), "1 entry");
        assert_eq!(count(0, "entry"), "0 entries");
        assert_eq!(count(2, "run"), "2 runs");
    }

    #[test]
    fn sizes_have_three_digits() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.50 KiB");
        assert_eq!(size(64 << 20), "64.0 MiB");
        assert_eq!(size(200 << 30), "200 GiB");
        assert_eq!(size(1023 << 20), "1.00 GiB");
    }
}
