//! The parent proxy through which this machine reaches the network, if any.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Instant;

use retake_types::{HostTarget, NetworkRequest, NetworkRule, ParentProxyProblem};

use super::dial::Purpose;
use super::head::{self, Authority};
use super::link::Link;

/// A variable that names an unusable proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentProxyError {
    pub variable: String,
    pub problem: ParentProxyProblem,
}

/// The proxies of the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parents {
    requests: Option<Parent>,
    tunnels: Option<Parent>,
    except: Vec<Exception>,
}

/// A host that is reached without a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Exception {
    Everything,
    /// This name and all names below it.
    Domain(String),
    Addresses(NetworkRule),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Http,
    Socks,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Parent {
    kind: Kind,
    host: String,
    port: u16,
    login: Option<(String, String)>,
}

/// Without credentials.
impl fmt::Debug for Parent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}:{}", self.kind, self.host, self.port)
    }
}

impl Parents {
    /// Reads the usual variables.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Self, ParentProxyError> {
        let first = |names: [&str; 4]| -> Result<Option<Parent>, ParentProxyError> {
            let given = |name: &&str| get(name).filter(|value| !value.trim().is_empty());
            let Some((name, value)) = names.iter().find_map(|name| Some((name, given(name)?)))
            else {
                return Ok(None);
            };
            let wrong = |problem| ParentProxyError { variable: (*name).to_owned(), problem };
            Parent::parse(value.trim()).map(Some).map_err(wrong)
        };
        let except = get("no_proxy").or_else(|| get("NO_PROXY")).unwrap_or_default();
        Ok(Self {
            requests: first(["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])?,
            tunnels: first(["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])?,
            except: except.split([',', ' ']).filter_map(Exception::parse).collect(),
        })
    }

    /// The proxy for this host. Never one for this machine itself.
    pub(super) fn leading_to(&self, authority: &Authority, purpose: Purpose) -> Option<&Parent> {
        let parent = match purpose {
            Purpose::Request => &self.requests,
            Purpose::Tunnel => &self.tunnels,
        };
        let direct = authority.target.is_loopback()
            || self.except.iter().any(|exception| exception.is_about(authority));
        parent.as_ref().filter(|_| !direct)
    }
}

impl Exception {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text == "*" {
            return Some(Self::Everything);
        }
        if let Ok(rule) = NetworkRule::parse(text)
            && matches!(rule.host, retake_types::HostPattern::Addresses { .. })
        {
            return Some(Self::Addresses(rule));
        }
        let name = text.trim_start_matches("*.").trim_start_matches('.');
        match HostTarget::parse(name) {
            Some(HostTarget::Name(name)) => Some(Self::Domain(name)),
            _ => None,
        }
    }

    fn is_about(&self, authority: &Authority) -> bool {
        match (self, &authority.target) {
            (Self::Everything, _) => true,
            (Self::Domain(domain), HostTarget::Name(name)) => {
                let rest = name.strip_suffix(domain.as_str());
                rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            (Self::Addresses(rule), target @ HostTarget::Address(_)) => {
                let request =
                    NetworkRequest { allow: vec![rule.clone()], ..NetworkRequest::default() };
                request.check(target, authority.port).is_ok()
            }
            (Self::Domain(_) | Self::Addresses(_), _) => false,
        }
    }
}

impl Parent {
    fn parse(url: &str) -> Result<Self, ParentProxyProblem> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let (kind, default) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (Kind::Http, 80),
            "socks5" | "socks5h" => (Kind::Socks, 1080),
            _ => return Err(ParentProxyProblem::Scheme),
        };
        let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (login, place) = match rest.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, rest),
        };
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| ParentProxyProblem::Address)?)
            }
            _ => (place, default),
        };
        let target = HostTarget::parse(host).ok_or(ParentProxyProblem::Address)?;
        let login = login.map(|login| {
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            (unescaped(user), unescaped(password))
        });
        Ok(Self { kind, host: target.to_string(), port, login })
    }

    /// Its address, which may be a private one.
    pub(super) fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// The fields of a request to it; `None` if it supports only tunnels.
    pub(super) fn fields(&self) -> Option<Vec<(String, String)>> {
        (self.kind == Kind::Http).then(|| self.authorization().into_iter().collect())
    }

    fn authorization(&self) -> Option<(String, String)> {
        let (user, password) = self.login.as_ref()?;
        let token = base64(format!("{user}:{password}").as_bytes());
        Some(("Proxy-Authorization".to_owned(), format!("Basic {token}")))
    }

    /// Requests a tunnel.
    pub(super) fn ask(&self, link: Link<'_>, to: &Authority, until: Instant) -> io::Result<()> {
        match self.kind {
            Kind::Http => self.ask_http(link, to, until),
            Kind::Socks => self.ask_socks(link, to, until),
        }
    }

    fn ask_http(&self, link: Link<'_>, to: &Authority, until: Instant) -> io::Result<()> {
        let mut text = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n");
        if let Some((name, value)) = self.authorization() {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        link.write(text.as_bytes(), until)?;
        // Byte by byte: data after the answer is the server's.
        let mut answer = Vec::new();
        while head::end(&answer).is_none() {
            if answer.len() > head::LONGEST {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let mut one = [0];
            match link.read(&mut one, until)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => answer.push(one[0]),
            }
        }
        let status = answer.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        match status {
            [b'2', ..] => Ok(()),
            _ => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }

    fn ask_socks(&self, link: Link<'_>, to: &Authority, until: Instant) -> io::Result<()> {
        let read = |count: usize| -> io::Result<Vec<u8>> {
            let mut bytes = vec![0; count];
            let mut filled = 0;
            while filled < count {
                match link.read(&mut bytes[filled..], until)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    got => filled += got,
                }
            }
            Ok(bytes)
        };
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let counted = |text: &str| -> io::Result<Vec<u8>> {
            let length = u8::try_from(text.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
            Ok([&[length], text.as_bytes()].concat())
        };
        match &self.login {
            None => link.write(&[5, 1, 0], until)?,
            Some(_) => link.write(&[5, 2, 0, 2], until)?,
        }
        match (read(2)?.as_slice(), &self.login) {
            ([5, 0], _) => {}
            ([5, 2], Some((user, password))) => {
                let login = [&[1][..], &counted(user)?, &counted(password)?].concat();
                link.write(&login, until)?;
                if read(2)?[1] != 0 {
                    return Err(refused());
                }
            }
            _ => return Err(refused()),
        }
        let target = match &to.target {
            HostTarget::Name(name) => [&[3][..], &counted(name)?].concat(),
            HostTarget::Address(IpAddr::V4(address)) => [&[1][..], &address.octets()].concat(),
            HostTarget::Address(IpAddr::V6(address)) => [&[4][..], &address.octets()].concat(),
        };
        link.write(&[&[5, 1, 0][..], &target, &to.port.to_be_bytes()].concat(), until)?;
        let answer = read(4)?;
        if answer[1] != 0 {
            return Err(refused());
        }
        let left = match answer[3] {
            1 => 6,
            4 => 18,
            3 => usize::from(read(1)?[0]) + 2,
            _ => return Err(refused()),
        };
        read(left).map(drop)
    }
}

/// Decodes `%40` and similar escapes.
fn unescaped(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let digits = bytes.get(at + 1..at + 3).and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) if bytes[at] == b'%' => {
                out.push(byte);
                at += 3;
            }
            _ => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            out.push(match digit <= three.len() {
                true => char::from(DIGITS[(bits >> (18 - 6 * digit)) as usize & 63]),
                false => '=',
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parents(list: &[(&str, &str)]) -> Result<Parents, ParentProxyError> {
        Parents::from_variables(|name| {
            list.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn to(host: &str) -> Authority {
        Authority::new(host, 443).expect("a host")
    }

    #[test]
    fn the_usual_variables_are_read() {
        let found = parents(&[
            ("https_proxy", "http://me:p%40ss@proxy.example:3128/"),
            ("ALL_PROXY", "socks5h://10.0.0.1"),
            ("no_proxy", "localhost, .corp.example,10.0.0.0/8, *.x.y"),
        ])
        .expect("good");
        let tunnels = found.leading_to(&to("a.b"), Purpose::Tunnel).expect("one");
        assert_eq!(tunnels.address(), ("proxy.example", 3128));
        let fields = tunnels.fields().expect("HTTP");
        assert_eq!(fields[0].1, "Basic bWU6cEBzcw==");
        let requests = found.leading_to(&to("a.b"), Purpose::Request).expect("one");
        assert_eq!((requests.address(), requests.fields()), (("10.0.0.1", 1080), None));
        for direct in
            ["localhost", "127.0.0.1", "corp.example", "a.corp.example", "10.9.9.9", "z.x.y"]
        {
            assert_eq!(found.leading_to(&to(direct), Purpose::Tunnel), None, "{direct}");
        }
        assert!(found.leading_to(&to("notcorp.example"), Purpose::Tunnel).is_some());
        assert!(!format!("{found:?}").contains("p@ss"));
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_an_error_and_not_ignored() {
        for (url, problem) in [
            ("https://proxy:1", ParentProxyProblem::Scheme),
            ("socks4://proxy:1", ParentProxyProblem::Scheme),
            ("http://proxy:x", ParentProxyProblem::Address),
            ("http://", ParentProxyProblem::Address),
        ] {
            let error = parents(&[("HTTPS_PROXY", url)]).expect_err(url);
            assert_eq!(error, ParentProxyError { variable: "HTTPS_PROXY".to_owned(), problem });
        }
        assert_eq!(parents(&[("HTTPS_PROXY", " ")]), Ok(Parents::default()));
    }
}
