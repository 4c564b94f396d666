//! Well-known shapes of tokens: a fixed beginning, then enough of the right characters.
//!
//! A shape must be rare in honest output, so each asks for its real minimum length and for a
//! boundary before it (`task-force` does not contain `sk-`).

/// What a candidate turns out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    No,
    /// Cannot be told before more bytes arrive.
    NeedMore,
    /// `start..end` is secret; an open end goes on while bytes are of the class.
    Found {
        start: usize,
        end: usize,
        open: Option<Class>,
    },
}

/// A set of bytes that a token is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Letters and digits.
    Alphanumeric,
    Upper,
    /// And `_`, `-`.
    Word,
    /// And `.`.
    Dotted,
    /// The body of a PEM block.
    Pem,
}

impl Class {
    pub(crate) fn has(self, byte: u8) -> bool {
        match self {
            Self::Alphanumeric => byte.is_ascii_alphanumeric(),
            Self::Upper => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
            Self::Word => byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'),
            Self::Dotted => byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'),
            // The base64 lines, however indented or escaped, and headers such as `DEK-Info:`.
            Self::Pem => {
                byte.is_ascii_alphanumeric()
                    || byte.is_ascii_whitespace()
                    || matches!(byte, b'+' | b'/' | b'=' | b'\\' | b'-' | b':' | b',')
            }
        }
    }

    /// How many bytes from the beginning belong to the class.
    fn run(self, bytes: &[u8]) -> usize {
        bytes.iter().position(|&byte| !self.has(byte)).unwrap_or(bytes.len())
    }

    /// How many bytes belong to a token that is open here, and whether more may follow.
    pub(crate) fn extent(self, bytes: &[u8], last: bool) -> (usize, bool) {
        let run = self.run(bytes);
        if self != Self::Pem {
            return (run, run == bytes.len() && !last);
        }
        // The line that ends a key is no secret, and it tells where ordinary output goes on.
        if let Some(end) = memchr::memmem::find(&bytes[..run], PEM_END) {
            return (end, false);
        }
        if run < bytes.len() || last {
            return (run, false);
        }
        let cut = (1..PEM_END.len()).rev().find(|&length| bytes.ends_with(&PEM_END[..length]));
        (run - cut.unwrap_or(0), true)
    }
}

const PEM_END: &[u8] = b"-----END";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) prefix: &'static [u8],
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// At least this many bytes of the class follow.
    Token(Class, usize),
    /// Exactly this many, then something else.
    Exact(Class, usize),
    /// Three base64url parts, the second beginning like the first.
    Jwt,
    /// `-----BEGIN … PRIVATE KEY-----` and what follows.
    PrivateKey,
    /// `scheme://user:password@host`.
    UrlPassword,
}

const fn token(name: &'static str, prefix: &'static [u8], class: Class, minimum: usize) -> Shape {
    Shape { name, prefix, kind: Kind::Token(class, minimum) }
}

const fn exact(name: &'static str, prefix: &'static [u8], class: Class, length: usize) -> Shape {
    Shape { name, prefix, kind: Kind::Exact(class, length) }
}

/// `{"` and the first letter of a header's first key (alg, typ, kid, …) in base64. Four bytes are
/// found several times faster than the three that all of them share.
const fn jwt_shape(prefix: &'static [u8]) -> Shape {
    Shape { name: "jwt", prefix, kind: Kind::Jwt }
}

pub(crate) const SHAPES: [Shape; 36] = [
    token("github-token", b"ghp_", Class::Alphanumeric, 36),
    token("github-token", b"gho_", Class::Alphanumeric, 36),
    token("github-token", b"ghs_", Class::Alphanumeric, 36),
    token("github-token", b"ghu_", Class::Alphanumeric, 36),
    token("github-token", b"ghr_", Class::Alphanumeric, 36),
    token("github-token", b"github_pat_", Class::Word, 40),
    token("gitlab-token", b"glpat-", Class::Word, 20),
    exact("aws-access-key", b"AKIA", Class::Upper, 16),
    exact("aws-access-key", b"ASIA", Class::Upper, 16),
    token("slack-token", b"xoxb-", Class::Word, 20),
    token("slack-token", b"xoxp-", Class::Word, 20),
    token("slack-token", b"xoxa-", Class::Word, 20),
    token("slack-token", b"xoxr-", Class::Word, 20),
    token("slack-token", b"xoxs-", Class::Word, 20),
    token("anthropic-key", b"sk-ant-", Class::Word, 24),
    token("openai-key", b"sk-proj-", Class::Word, 24),
    token("api-key", b"sk-", Class::Alphanumeric, 32),
    token("google-key", b"AIza", Class::Word, 35),
    token("npm-token", b"npm_", Class::Alphanumeric, 36),
    token("pypi-token", b"pypi-", Class::Word, 50),
    token("stripe-key", b"sk_live_", Class::Alphanumeric, 16),
    token("stripe-key", b"rk_live_", Class::Alphanumeric, 16),
    Shape { name: "private-key", prefix: b"-----BEGIN ", kind: Kind::PrivateKey },
    Shape { name: "url-password", prefix: b"://", kind: Kind::UrlPassword },
    jwt_shape(b"eyJh"),
    jwt_shape(b"eyJ0"),
    jwt_shape(b"eyJr"),
    jwt_shape(b"eyJl"),
    jwt_shape(b"eyJj"),
    jwt_shape(b"eyJq"),
    jwt_shape(b"eyJ4"),
    jwt_shape(b"eyJ6"),
    jwt_shape(b"eyJp"),
    jwt_shape(b"eyJu"),
    jwt_shape(b"eyJw"),
    jwt_shape(b"eyJi"),
];

/// Longer user names and passwords than this are not looked for in a URL.
const USERINFO: usize = 512;
const SHORTEST_JWT_PART: usize = 10;
/// A part this long without a dot is base64 of something else.
const LONGEST_JWT_PART: usize = 8 * 1024;

/// Where a URL begins whose user information ends before `at`, judged by its `://`.
pub(crate) fn url_before(bytes: &[u8], at: usize) -> Option<usize> {
    let from = at.saturating_sub(USERINFO + 3);
    let slash = from + bytes[from..at].iter().rposition(|&byte| ends_userinfo(byte))?;
    (bytes[..=slash].ends_with(b"://")).then(|| slash - 2)
}

fn ends_userinfo(byte: u8) -> bool {
    matches!(byte, b'@' | b'/' | b'?' | b'#' | b'"' | b'\'' | b'<' | b'>' | b'`' | b'\\')
        || byte <= b' '
}

impl Shape {
    /// Prefixes of three bytes are common: each has a search of its own.
    pub(crate) fn has_own_search(&self) -> bool {
        self.prefix.len() < 4
    }

    /// Judges the candidate whose prefix is at `at`. `last` says that no more bytes will come.
    pub(crate) fn judge(&self, bytes: &[u8], at: usize, before: Option<u8>, last: bool) -> Verdict {
        let body = at + self.prefix.len();
        let rest = &bytes[body..];
        let wait = |reached_end: bool| {
            if reached_end && !last { Verdict::NeedMore } else { Verdict::No }
        };
        let boundary = !before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        match self.kind {
            Kind::Token(class, minimum) if boundary => {
                let run = class.run(rest);
                if run < minimum {
                    return wait(run == rest.len());
                }
                let open = (run == rest.len() && !last).then_some(class);
                Verdict::Found { start: at, end: body + run, open }
            }
            Kind::Exact(class, length) if boundary => match class.run(rest) {
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
            Kind::Jwt if boundary => jwt(bytes, at, last),
            Kind::PrivateKey => private_key(bytes, at, last),
            Kind::UrlPassword => url_password(bytes, at, last),
            Kind::Token(..) | Kind::Exact(..) | Kind::Jwt => Verdict::No,
        }
    }
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
    // The payload is the secret part: past its beginning there is nothing left to wait for, a
    // missing signature included.
    if length < SHORTEST_JWT_PART {
        return undecided(end, length);
    }
    let whole = Class::Dotted.run(&bytes[at..]);
    let open = (at + whole == bytes.len() && !last).then_some(Class::Dotted);
    Verdict::Found { start: at, end: at + whole, open }
}

fn private_key(bytes: &[u8], at: usize, last: bool) -> Verdict {
    // `-----BEGIN ` + up to four words + `PRIVATE KEY-----`, on one line.
    const END: &[u8] = b"PRIVATE KEY-----";
    const LONGEST: usize = 64;
    let head = &bytes[at..bytes.len().min(at + LONGEST)];
    let line = head.iter().skip(11).position(|&byte| {
        !(byte.is_ascii_uppercase() || byte.is_ascii_digit() || matches!(byte, b' ' | b'-'))
    });
    let line = &head[..line.map_or(head.len(), |end| end + 11)];
    match memchr::memmem::find(line, END) {
        Some(found) => {
            let body = at + found + END.len();
            let (run, more) = Class::Pem.extent(&bytes[body..], last);
            Verdict::Found { start: at, end: body + run, open: more.then_some(Class::Pem) }
        }
        None if line.len() == head.len() && head.len() < LONGEST && !last => Verdict::NeedMore,
        None => Verdict::No,
    }
}

fn url_password(bytes: &[u8], at: usize, last: bool) -> Verdict {
    let userinfo = at + 3;
    let window = &bytes[userinfo..bytes.len().min(userinfo + USERINFO)];
    let end = window.iter().position(|&byte| ends_userinfo(byte));
    match end {
        None if window.len() < USERINFO && !last => Verdict::NeedMore,
        Some(end) if window[end] == b'@' => match memchr::memchr(b':', &window[..end]) {
            Some(colon) if end - colon > super::SHORTEST => {
                Verdict::Found { start: userinfo + colon + 1, end: userinfo + end, open: None }
            }
            _ => Verdict::No,
        },
        _ => Verdict::No,
    }
}
