//! Whether a shape matches at its prefix, judged by the bytes around it.

use super::shapes::{Class, Kind, Shape};

/// The verdict on a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    No,
    /// More bytes are needed.
    NeedMore,
    /// `start..end` is secret; an open end continues with bytes of the class.
    Found {
        start: usize,
        end: usize,
        open: Option<Class>,
    },
}

/// The maximum length of a user name and password in a URL.
pub(crate) const USERINFO: usize = 512;
const SHORTEST_URL_PASSWORD: usize = 3;
/// The maximum length of the line before a private key.
pub(crate) const LONGEST_KEY_LINE: usize = 64;
/// A user name this long, without a password, is a token.
const LONG_USER: usize = 36;
const SHORTEST_CREDENTIAL: usize = 8;
const SHORTEST_JWT_PART: usize = 10;
/// Without a dot within this length it is base64 of something else.
const LONGEST_JWT_PART: usize = 8 * 1024;

pub(crate) fn ends_userinfo(byte: u8) -> bool {
    matches!(byte, b'@' | b'/' | b'?' | b'#' | b'"' | b'\'' | b'<' | b'>' | b'`' | b'\\')
        || byte <= b' '
}

impl Shape {
    /// Judges the candidate whose prefix is at `at`. `before` ends there and has up to
    /// [`LOOKED_BACK`] bytes; `last` says that no more bytes follow.
    pub(crate) fn judge(&self, bytes: &[u8], at: usize, before: &[u8], last: bool) -> Verdict {
        let body = at + self.prefix.len();
        let rest = &bytes[body..];
        let wait = |reached_end: bool| {
            if reached_end && !last { Verdict::NeedMore } else { Verdict::No }
        };
        match self.kind {
            Kind::Token(..) | Kind::Exact(..) | Kind::Parts(..) | Kind::Jwt
                if !is_boundary(before) =>
            {
                Verdict::No
            }
            Kind::AfterDigit(..) if !before.last().is_some_and(u8::is_ascii_digit) => Verdict::No,
            Kind::Token(class, minimum) | Kind::AfterDigit(class, minimum) => {
                let run = class.run(rest);
                if run < minimum {
                    return wait(run == rest.len());
                }
                let open = (run == rest.len() && !last).then_some(class);
                Verdict::Found { start: at, end: body + run, open }
            }
            Kind::Exact(class, length) => match class.run(rest) {
                run if run == rest.len() && run <= length && !last => Verdict::NeedMore,
                run if run == length => {
                    let followed = rest.get(run).is_some_and(u8::is_ascii_lowercase);
                    if followed {
                        Verdict::No
                    } else {
                        Verdict::Found { start: at, end: body + run, open: None }
                    }
                }
                _ => Verdict::No,
            },
            Kind::Value(class, minimum) => {
                let run = class.run(rest);
                if run < minimum {
                    return wait(run == rest.len());
                }
                let open = (run == rest.len() && !last).then_some(class);
                Verdict::Found { start: body, end: body + run, open }
            }
            Kind::Authorization => authorization(bytes, body, last),
            Kind::Jwt => jwt(bytes, at, last),
            Kind::PrivateKey => private_key(bytes, at, last),
            Kind::UrlPassword => url_password(bytes, body, last),
            Kind::Parts(separator, parts) => match in_parts(rest, separator, parts, last) {
                Verdict::Found { end, .. } => {
                    Verdict::Found { start: at, end: body + end, open: None }
                }
                other => other,
            },
        }
    }
}

/// How many bytes before a candidate decide whether a word begins there.
pub(crate) const LOOKED_BACK: usize = 16;

/// Whether a word can begin after these bytes: also after an escape that ends in a letter or digit,
/// such as `\n` in JSON, `%3D` in a URL, or a terminal colour.
fn is_boundary(before: &[u8]) -> bool {
    match before {
        [.., byte] if !byte.is_ascii_alphanumeric() && *byte != b'_' => true,
        [] | [.., b'\\', b'n' | b'r' | b't' | b'f' | b'b' | b'v' | b'e'] => true,
        [.., b'%', a, b] | [.., b'\\', b'x', a, b] | [.., b'\\', b'u', _, _, a, b]
            if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() =>
        {
            true
        }
        [rest @ .., last] if last.is_ascii_alphabetic() => {
            let parameter = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b';' | b':' | b'?');
            let begin = rest.iter().rposition(|byte| !parameter(byte));
            // The escape byte, or its form in JSON and shells: `\u001b`, `\x1b`, `\033`, `\e`.
            begin.is_some_and(|at| {
                matches!(rest[..=at], [.., 0x1b | b'b' | b'B' | b'3' | b'e', b'['])
            })
        }
        _ => false,
    }
}

/// Whether the bytes begin with such parts, and where those end.
fn in_parts(bytes: &[u8], separator: u8, parts: &[(Class, usize)], last: bool) -> Verdict {
    let mut end = 0;
    for (number, &(class, length)) in parts.iter().enumerate() {
        let run = class.run(&bytes[end..]);
        let cut = end + run == bytes.len() && !last;
        match run {
            _ if cut && run <= length => return Verdict::NeedMore,
            _ if run != length => return Verdict::No,
            _ => end += run,
        }
        if number + 1 < parts.len() {
            if bytes.get(end) != Some(&separator) {
                return Verdict::No;
            }
            end += 1;
        }
    }
    Verdict::Found { start: 0, end, open: None }
}

fn jwt(bytes: &[u8], at: usize, last: bool) -> Verdict {
    let undecided = |end: usize, length: usize| {
        if end == bytes.len() && !last && length < LONGEST_JWT_PART {
            Verdict::NeedMore
        } else {
            Verdict::No
        }
    };
    let first = Class::Word.run(&bytes[at..]);
    let dot = at + first;
    if bytes.get(dot) != Some(&b'.') || first < SHORTEST_JWT_PART {
        return undecided(dot, first);
    }
    let second = &bytes[dot + 1..];
    let begins = second.len().min(3);
    if second[..begins] != b"eyJ"[..begins] {
        return Verdict::No;
    }
    let length = Class::Word.run(second);
    let end = dot + 1 + length;
    // The payload is the secret part: after its beginning nothing more is needed, not even a
    // signature.
    if length < SHORTEST_JWT_PART {
        return undecided(end, length);
    }
    let whole = Class::Dotted.run(&bytes[at..]);
    let open = (at + whole == bytes.len() && !last).then_some(Class::Dotted);
    Verdict::Found { start: at, end: at + whole, open }
}

fn private_key(bytes: &[u8], at: usize, last: bool) -> Verdict {
    // `-----BEGIN ` + up to four words + `PRIVATE KEY-----`, on one line.
    const END: &[u8] = b"PRIVATE KEY";
    const LONGEST: usize = LONGEST_KEY_LINE;
    let head = &bytes[at..bytes.len().min(at + LONGEST)];
    let line = head.iter().skip(11).position(|&byte| {
        !(byte.is_ascii_uppercase() || byte.is_ascii_digit() || matches!(byte, b' ' | b'-'))
    });
    let line = &head[..line.map_or(head.len(), |end| end + 11)];
    let class = |after: &[u8]| match after {
        [b'-', b'-', b'-', b'-', b'-', ..] => Some((Class::Pem, 5)),
        _ if after.starts_with(b" BLOCK-----") => Some((Class::Armor, 11)),
        _ => None,
    };
    let found = memchr::memmem::find(line, END).map(|found| found + END.len());
    match found.and_then(|end| Some((end, class(&line[end..])?))) {
        Some((end, (class, dashes))) => {
            let body = at + end + dashes;
            let (run, more) = class.extent(&bytes[body..], last);
            Verdict::Found { start: at, end: body + run, open: more.then_some(class) }
        }
        None if line.len() == head.len() && head.len() < LONGEST && !last => Verdict::NeedMore,
        None => Verdict::No,
    }
}

fn url_password(bytes: &[u8], userinfo: usize, last: bool) -> Verdict {
    let window = &bytes[userinfo..bytes.len().min(userinfo + USERINFO)];
    let authority = window.iter().position(|&byte| byte != b'@' && ends_userinfo(byte));
    if authority.is_none() && window.len() < USERINFO && !last {
        return Verdict::NeedMore;
    }
    // A password may contain an unescaped `@`.
    let authority = &window[..authority.unwrap_or(window.len())];
    let Some(end) = memchr::memrchr(b'@', authority) else { return Verdict::No };
    let found = |secret: std::ops::Range<usize>| Verdict::Found {
        start: userinfo + secret.start,
        end: userinfo + secret.end,
        open: None,
    };
    match memchr::memchr(b':', &window[..end]) {
        _ if window.starts_with(b"[") => Verdict::No, // `://[user:password@]host` in a manual
        // A token may also be the user name, alone or with a dummy password.
        Some(colon) if &window[colon + 1..end] == b"x-oauth-basic" => found(0..colon),
        Some(colon) if is_password(&window[colon + 1..end]) => found(colon + 1..end),
        None if end >= LONG_USER && Class::Word.run(window) == end => found(0..end),
        _ => Verdict::No,
    }
}

/// Excludes placeholders of templates and manuals.
fn is_password(text: &[u8]) -> bool {
    text.len() >= SHORTEST_URL_PASSWORD
        && !matches!(text[0], b'$' | b'{' | b'*' | b'[')
        && !text.starts_with(b"%s")
}

/// Whether this may begin a placeholder in a manual.
fn begins_placeholder(text: &[u8]) -> bool {
    text.iter().all(|byte| byte.is_ascii_uppercase() || matches!(byte, b'_' | b'-'))
}

/// A placeholder in a manual: `YOUR_TOKEN`, `OAUTH-TOKEN`.
fn is_placeholder(text: &[u8]) -> bool {
    let words = || text.split(|byte| matches!(byte, b'_' | b'-'));
    begins_placeholder(text)
        && words().count() > 1
        && words().any(|word| [b"TOKEN".as_slice(), b"KEY", b"YOUR"].contains(&word))
}

/// After the word: a colon, a scheme, and the secret, with the quotes of JSON or Python.
fn authorization(bytes: &[u8], body: usize, last: bool) -> Verdict {
    const SCHEMES: [&[u8]; 5] = [b"bearer", b"basic", b"token", b"apikey", b"bot"];
    const LONGEST: usize = 32;
    let end = bytes.len();
    let wait = |at: usize| {
        if at >= end && !last && at - body < LONGEST { Verdict::NeedMore } else { Verdict::No }
    };
    let skip = |mut at: usize, of: &[u8]| {
        while at < end && at - body < LONGEST && of.contains(&bytes[at]) {
            at += 1;
        }
        at
    };
    let colon = skip(body, b"\"' \\");
    if bytes.get(colon).is_none_or(|byte| !b":=".contains(byte)) {
        return wait(colon);
    }
    let scheme = skip(colon + 1, b"\"' \t\\>:");
    let letters = bytes[scheme..].iter().take(LONGEST).take_while(|b| b.is_ascii_alphabetic());
    let after = scheme + letters.count();
    if after == end && !last {
        return wait(after);
    }
    let known = SCHEMES.iter().any(|name| bytes[scheme..after].eq_ignore_ascii_case(name));
    let value = if known { skip(after, b" \t") } else { return Verdict::No };
    let run = Class::Credential.run(&bytes[value..]);
    if run < SHORTEST_CREDENTIAL {
        return if value + run == end && !last { Verdict::NeedMore } else { Verdict::No };
    }
    let cut = value + run == end && !last;
    let secret = &bytes[value..value + run];
    if run < LONGEST && cut && begins_placeholder(secret) {
        return Verdict::NeedMore;
    }
    if run < LONGEST && is_placeholder(secret) {
        return Verdict::No;
    }
    Verdict::Found { start: value, end: value + run, open: cut.then_some(Class::Credential) }
}
