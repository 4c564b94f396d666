//! Parses the head of a proxy request strictly: ambiguous input is refused, because the server
//! behind the proxy may read it differently.

use retake_types::HostTarget;

/// Maximum length of a head, and maximum number of fields.
pub(super) const LONGEST: usize = 64 << 10;
const MOST_FIELDS: usize = 200;

/// The destination of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authority {
    pub(super) target: HostTarget,
    pub(super) port: u16,
    /// The host as the client wrote it, so that redaction finds a secret in it by its exact
    /// letters.
    written: String,
}

impl Authority {
    /// `None` if this is not a valid host.
    pub(super) fn new(host: &str, port: u16) -> Option<Self> {
        let target = HostTarget::parse(host)?;
        Some(Self { target, port, written: host.to_owned() })
    }

    /// The host for the report.
    pub(super) fn host(&self) -> String {
        written_host(&self.target, &self.written)
    }
}

/// The host for the report, given its original spelling.
pub(super) fn written_host(target: &HostTarget, written: &str) -> String {
    match target {
        target if target.is_loopback() => "localhost".to_owned(),
        HostTarget::Name(_) => written.strip_suffix('.').unwrap_or(written).to_owned(),
        HostTarget::Address(address) => address.to_string(),
    }
}

impl std::fmt::Display for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.target {
            HostTarget::Address(address) if address.is_ipv6() => {
                write!(f, "[{address}]:{}", self.port)
            }
            target => write!(f, "{target}:{}", self.port),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A tunnel.
    Connect,
    /// One unencrypted request, with its path on the server.
    Forward { path: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    None,
    Length(u64),
    Chunked,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    method: String,
    version: &'static str,
    pub(super) authority: Authority,
    pub(super) form: Form,
    fields: Vec<(String, String)>,
    pub(super) body: Body,
    /// The protocol that the connection switches to, if the server agrees.
    pub(super) upgrade: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadHead {
    TooLong,
    Malformed,
    /// It names no host: this is not a server.
    NotForProxy,
    /// An unencrypted scheme other than `http`.
    Scheme,
}

/// The end of the head, if it is complete.
pub(super) fn end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

impl Head {
    /// Parses a complete head, including its final empty line.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadHead> {
        let text = std::str::from_utf8(bytes).map_err(|_| BadHead::Malformed)?;
        let text = text.strip_suffix("\r\n\r\n").ok_or(BadHead::Malformed)?;
        let mut lines = text.split("\r\n");
        // Bare line ends, NUL, escapes: real programs send none.
        let clean = |line: &str| !line.bytes().any(|byte| byte < b' ' && byte != b'\t');
        if !text.split("\r\n").all(clean) {
            return Err(BadHead::Malformed);
        }
        let (method, target, version) = request_line(lines.next().unwrap_or_default())?;
        let mut fields = Vec::new();
        for line in lines {
            fields.push(field(line)?);
            if fields.len() > MOST_FIELDS {
                return Err(BadHead::TooLong);
            }
        }
        let (authority, form) = match method {
            "CONNECT" => (authority(target, None).ok_or(BadHead::Malformed)?, Form::Connect),
            _ => absolute(target)?,
        };
        let body = match form {
            Form::Connect => Body::None,
            Form::Forward { .. } => body(&fields, version)?,
        };
        let upgrade = upgrade(&fields).filter(|_| form != Form::Connect);
        let method = method.to_owned();
        Ok(Self { method, version, authority, form, fields, body, upgrade })
    }

    /// The head to forward: to the server itself, or to a parent proxy with its authorization.
    pub(super) fn forwarded(&self, parent: Option<&[(String, String)]>) -> Vec<u8> {
        let Self { method, version, authority, form, fields, .. } = self;
        let path = match form {
            Form::Connect => "",
            Form::Forward { path } => path,
        };
        // Servers compare it with their name, without the default port.
        let host = authority.to_string();
        let host = host.strip_suffix(":80").unwrap_or(&host);
        let mut text = match parent {
            Some(_) => format!("{method} http://{host}{path} {version}\r\n"),
            None => format!("{method} {path} {version}\r\n"),
        };
        let mut add = |name: &str, value: &str| {
            text.push_str(name);
            text.push_str(": ");
            text.push_str(value);
            text.push_str("\r\n");
        };
        add("Host", host);
        let named = listed(fields, "connection");
        for (name, value) in fields {
            let hop = ["host", "connection", "keep-alive", "upgrade", "te", "proxy-connection"];
            let own = hop.iter().any(|hop| name.eq_ignore_ascii_case(hop))
                || name.to_ascii_lowercase().starts_with("proxy-")
                || named.iter().any(|named| {
                    // `Connection` must never name a framing field.
                    name.eq_ignore_ascii_case(named)
                        && !named.eq_ignore_ascii_case("content-length")
                        && !named.eq_ignore_ascii_case("transfer-encoding")
                });
            if !own {
                add(name, value);
            }
        }
        for (name, value) in parent.into_iter().flatten() {
            add(name, value);
        }
        match &self.upgrade {
            Some(protocol) => {
                add("Upgrade", protocol);
                add("Connection", "Upgrade");
            }
            // One request per connection: a second one would not be checked.
            None => add("Connection", "close"),
        }
        text.push_str("\r\n");
        text.into_bytes()
    }
}

fn is_token(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(good)
}

fn is_plain(target: &str) -> bool {
    !target.is_empty() && target.bytes().all(|byte| byte.is_ascii_graphic())
}

fn request_line(line: &str) -> Result<(&str, &str, &'static str), BadHead> {
    let mut parts = line.split(' ');
    let (method, target, version) = (parts.next(), parts.next(), parts.next());
    let version = match version {
        Some("HTTP/1.1") => "HTTP/1.1",
        Some("HTTP/1.0") => "HTTP/1.0",
        _ => return Err(BadHead::Malformed),
    };
    match (method, target, parts.next()) {
        (Some(method), Some(target), None) if is_token(method) && is_plain(target) => {
            Ok((method, target, version))
        }
        _ => Err(BadHead::Malformed),
    }
}

fn field(line: &str) -> Result<(String, String), BadHead> {
    // A line that begins with a space would continue the previous one.
    let (name, value) = line.split_once(':').ok_or(BadHead::Malformed)?;
    match is_token(name) {
        true => Ok((name.to_owned(), value.trim_matches([' ', '\t']).to_owned())),
        false => Err(BadHead::Malformed),
    }
}

/// `HOST:PORT`, without a user, a path or anything else.
fn authority(text: &str, default: Option<u16>) -> Option<Authority> {
    let (host, port) = match text.rsplit_once(':') {
        // A colon inside brackets belongs to the address.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    // Unlike in a rule, an IPv6 address must be in brackets here.
    if host.contains(':') && !host.starts_with('[') {
        return None;
    }
    let port = match port {
        None => default?,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            port.parse().ok().filter(|port| *port > 0)?
        }
        Some(_) => return None,
    };
    Authority::new(host, port)
}

fn absolute(target: &str) -> Result<(Authority, Form), BadHead> {
    let Some((scheme, rest)) = target.split_once("://") else { return Err(BadHead::NotForProxy) };
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(BadHead::Scheme);
    }
    let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(at);
    let authority = authority(host, Some(80)).ok_or(BadHead::Malformed)?;
    let path = match path {
        "" => "/".to_owned(),
        path if path.starts_with('?') => format!("/{path}"),
        path => path.to_owned(),
    };
    if path.contains('#') {
        return Err(BadHead::Malformed);
    }
    Ok((authority, Form::Forward { path }))
}

/// The framing of the body; duplicate declarations are refused.
fn body(fields: &[(String, String)], version: &str) -> Result<Body, BadHead> {
    let all = |wanted: &str| -> Vec<&str> {
        let named = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        named.map(|(_, value)| value.as_str()).collect()
    };
    match (all("content-length").as_slice(), all("transfer-encoding").as_slice()) {
        ([], []) => Ok(Body::None),
        ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            length.parse().map(Body::Length).map_err(|_| BadHead::Malformed)
        }
        ([], [coding]) if coding.eq_ignore_ascii_case("chunked") && version == "HTTP/1.1" => {
            Ok(Body::Chunked)
        }
        _ => Err(BadHead::Malformed),
    }
}

/// The members of a list field.
fn listed<'a>(fields: &'a [(String, String)], wanted: &str) -> Vec<&'a str> {
    let named = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
    named.flat_map(|(_, value)| value.split(',')).map(str::trim).collect()
}

fn upgrade(fields: &[(String, String)]) -> Option<String> {
    let asked = listed(fields, "connection").iter().any(|one| one.eq_ignore_ascii_case("upgrade"));
    let named = fields.iter().find(|(name, _)| name.eq_ignore_ascii_case("upgrade"));
    named.filter(|_| asked).map(|(_, value)| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Head, BadHead> {
        Head::parse(text.as_bytes())
    }

    fn forwarded(text: &str) -> String {
        let head = parse(text).expect("a good head");
        String::from_utf8(head.forwarded(None)).expect("text")
    }

    #[test]
    fn a_tunnel_names_host_and_port() {
        let head = parse("CONNECT Example.com:443 HTTP/1.1\r\nHost: other\r\n\r\n").expect("good");
        assert_eq!(
            (head.authority.to_string().as_str(), head.form),
            ("example.com:443", Form::Connect)
        );
        let six = parse("CONNECT [2606:4700::1]:443 HTTP/1.0\r\n\r\n").expect("good");
        assert_eq!(six.authority.to_string(), "[2606:4700::1]:443");
        for target in [
            "example.com",
            "example.com:",
            "example.com:0",
            "example.com:99999",
            "example.com:+443",
            "2606:4700::1:443",
            "user@example.com:443",
            "allowed.com:443@evil.com:443",
            "http://example.com:443",
            "example.com:443/path",
            "0x7f.1:443",
            "exa%6dple.com:443",
            "[::1%25lo]:443",
        ] {
            let text = format!("CONNECT {target} HTTP/1.1\r\n\r\n");
            assert_eq!(parse(&text), Err(BadHead::Malformed), "{target}");
        }
    }

    #[test]
    fn a_request_is_forwarded_to_the_host_of_its_url() {
        assert_eq!(
            forwarded(
                "GET http://Example.com/a?b=c HTTP/1.1\r\nHost: evil.com\r\nAccept: */*\r\n\
                 Proxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\n\
                 Connection: keep-alive, X-Own\r\nX-Own: 1\r\nKeep-Alive: 5\r\n\r\n"
            ),
            "GET /a?b=c HTTP/1.1\r\nHost: example.com\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(
            forwarded("GET http://example.com:8080?x HTTP/1.0\r\n\r\n"),
            "GET /?x HTTP/1.0\r\nHost: example.com:8080\r\nConnection: close\r\n\r\n"
        );
        let head =
            parse("GET http://a.b/ HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
        let head = head.expect("good");
        assert_eq!(head.upgrade.as_deref(), Some("websocket"));
        let parent = [("Proxy-Authorization".to_owned(), "Basic eA==".to_owned())];
        let text = String::from_utf8(head.forwarded(Some(&parent))).expect("text");
        assert!(text.starts_with("GET http://a.b/ HTTP/1.1\r\nHost: a.b\r\n"), "{text}");
        assert!(text.contains("Proxy-Authorization: Basic eA==\r\n"), "{text}");
    }

    #[test]
    fn ambiguous_or_malformed_heads_are_refused() {
        use BadHead::{Malformed, NotForProxy, Scheme};
        for (text, expected) in [
            ("GET / HTTP/1.1\r\n\r\n", NotForProxy),
            ("GET https://a.b/ HTTP/1.1\r\n\r\n", Scheme),
            ("GET ftp://a.b/ HTTP/1.1\r\n\r\n", Scheme),
            ("GET http://a@b.c/ HTTP/1.1\r\n\r\n", Malformed),
            ("GET http://a.b\\@c.d/ HTTP/1.1\r\n\r\n", Malformed),
            ("GET http:///x HTTP/1.1\r\n\r\n", Malformed),
            ("GET http://a.b/#x HTTP/1.1\r\n\r\n", Malformed),
            ("GET  http://a.b/ HTTP/1.1\r\n\r\n", Malformed),
            ("GET http://a.b/ HTTP/1.1 \r\n\r\n", Malformed),
            ("GET http://a.b/ HTTP/2\r\n\r\n", Malformed),
            ("GET http://a.b/\tx HTTP/1.1\r\n\r\n", Malformed),
            ("G(T http://a.b/ HTTP/1.1\r\n\r\n", Malformed),
            ("GET http://a.b/ HTTP/1.1\r\nA\r\n\r\n", Malformed),
            ("GET http://a.b/ HTTP/1.1\r\nA : b\r\n\r\n", Malformed),
            ("GET http://a.b/ HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", Malformed),
            ("GET http://a.b/ HTTP/1.1\r\nA: b\nB: c\r\n\r\n", Malformed),
            ("GET http://a.b/ HTTP/1.1\r\nA: b\rB: c\r\n\r\n", Malformed),
            ("GET http://a.b/ HTTP/1.1\r\nA: \0\r\n\r\n", Malformed),
            (
                "POST http://a.b/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
                Malformed,
            ),
            ("POST http://a.b/ HTTP/1.1\r\nContent-Length: +1\r\n\r\n", Malformed),
            ("POST http://a.b/ HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n", Malformed),
            (
                "POST http://a.b/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                Malformed,
            ),
            ("POST http://a.b/ HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", Malformed),
            ("POST http://a.b/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Malformed),
            ("POST http://a.b/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", Malformed),
        ] {
            assert_eq!(parse(text), Err(expected), "{text:?}");
        }
    }

    #[test]
    fn the_connection_header_cannot_remove_the_content_length() {
        let text = forwarded(
            "POST http://a.b/ HTTP/1.1\r\nConnection: close, Content-Length\r\nContent-Length: 3\r\n\r\n",
        );
        assert!(text.contains("Content-Length: 3\r\n"), "{text}");
    }
}
