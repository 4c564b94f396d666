//! The network of a confined run as a value: which hosts it may reach, and which it tried to reach.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// The hosts that a confined run may reach. Everything else is refused; a denial wins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkRequest {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<NetworkRule>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<NetworkRule>,
}

/// One rule about a host and its ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkRule {
    pub host: HostPattern,
    /// `None` is every port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
}

/// The hosts that a rule matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostPattern {
    /// Every host with a public address.
    All,
    /// This machine itself.
    Loopback,
    Name(String),
    /// Every name below this domain, at any depth.
    Below(String),
    /// Every address whose first bits are those of this one.
    Addresses {
        base: IpAddr,
        prefix: u8,
    },
}

/// What is wrong with the text of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostProblem {
    Empty,
    /// A URL, or something else with a slash.
    Url,
    Port,
    /// Addresses of this machine are allowed by port only.
    LoopbackPort,
    /// A wildcard that is not at the beginning, or that covers a whole top-level domain.
    Wildcard,
    /// A number in a form that programs parse differently.
    OddAddress,
    /// Not a name.
    Name,
}

/// Why the parent proxy of this machine cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParentProxyProblem {
    /// Not one of `http`, `socks5`, `socks5h`.
    Scheme,
    /// No host and port to connect to.
    Address,
}

impl fmt::Display for ParentProxyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scheme => "only proxies with http://, socks5:// or socks5h:// are supported",
            Self::Address => "not the host and port of a proxy",
        })
    }
}

/// A host that a program requested.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostTarget {
    /// In lower case, without a final dot.
    Name(String),
    Address(IpAddr),
}

/// Why a host was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkRefusal {
    /// No rule allows it.
    NotAllowed,
    /// A rule denies it.
    Denied,
    /// The address is not a public one.
    PrivateAddress,
    /// The request is ambiguous.
    Malformed,
    /// Something that the proxy does not support, such as datagrams.
    Unsupported,
    /// The name in the encrypted connection differs from the requested one.
    OtherName,
}

/// Requests of a run for one host at one port, and their result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkUse {
    /// Empty if the request did not name it unambiguously.
    pub host: String,
    pub port: u16,
    pub allowed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<NetworkRefusal>,
    /// The non-public address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    pub requests: u64,
    /// How many of the allowed requests got no connection.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub failed: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

impl NetworkUse {
    /// The rule that would allow it, if any.
    pub fn allowing_rule(&self) -> Option<NetworkRule> {
        if self.allowed {
            return None;
        }
        let port = Some(self.port);
        match self.reason? {
            NetworkRefusal::NotAllowed => match HostTarget::parse(&self.host)? {
                target if target.is_loopback() => {
                    Some(NetworkRule { host: HostPattern::Loopback, port })
                }
                HostTarget::Name(name) => {
                    Some(NetworkRule { host: HostPattern::Name(name), port: None })
                }
                HostTarget::Address(address) => Some(NetworkRule::address(address)),
            },
            NetworkRefusal::PrivateAddress => match self.address? {
                address if is_loopback(address) => {
                    Some(NetworkRule { host: HostPattern::Loopback, port })
                }
                address => Some(NetworkRule::address(address)),
            },
            NetworkRefusal::Denied
            | NetworkRefusal::Malformed
            | NetworkRefusal::Unsupported
            | NetworkRefusal::OtherName => None,
        }
    }
}

impl NetworkRequest {
    pub fn is_empty(&self) -> bool {
        self.allow.is_empty() && self.deny.is_empty()
    }

    /// Whether a host may be requested at all; for a name, before it is resolved.
    pub fn check(&self, target: &HostTarget, port: u16) -> Result<(), NetworkRefusal> {
        let names = |rule: &NetworkRule| rule.port.is_none_or(|own| own == port);
        if self.deny.iter().any(|rule| names(rule) && rule.host.is_about(target)) {
            return Err(NetworkRefusal::Denied);
        }
        let allows = |rule: &&NetworkRule| names(rule) && rule.host.is_about(target);
        let mut allowing = self.allow.iter().filter(allows).peekable();
        if allowing.peek().is_none() {
            return Err(NetworkRefusal::NotAllowed);
        }
        match target {
            HostTarget::Name(_) => Ok(()),
            HostTarget::Address(address) => self.check_address(*address, port, |_| false),
        }
    }

    /// Whether an address of an allowed host may be connected to. `own` tells which addresses are
    /// this machine's.
    pub fn check_address(
        &self,
        address: IpAddr,
        port: u16,
        own: impl Fn(IpAddr) -> bool,
    ) -> Result<(), NetworkRefusal> {
        let address = canonical(address);
        let target = HostTarget::Address(address);
        let names = |rule: &&NetworkRule| {
            rule.port.is_none_or(|own| own == port)
                && matches!(rule.host, HostPattern::Addresses { .. } | HostPattern::Loopback)
                && rule.host.is_about(&target)
        };
        if self.deny.iter().any(|rule| names(&rule)) {
            return Err(NetworkRefusal::Denied);
        }
        match is_public(address) && !own(address) || self.allow.iter().any(|rule| names(&rule)) {
            true => Ok(()),
            false => Err(NetworkRefusal::PrivateAddress),
        }
    }

    /// The ports of this machine that may be reached.
    pub fn loopback_ports(&self) -> Vec<u16> {
        let allowed = |rule: &NetworkRule| {
            let loopback = HostTarget::Address(Ipv4Addr::LOCALHOST.into());
            let port = rule.port.filter(|_| rule.host == HostPattern::Loopback)?;
            self.check(&loopback, port).is_ok().then_some(port)
        };
        let mut ports: Vec<u16> = self.allow.iter().filter_map(allowed).collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }
}

impl NetworkRule {
    fn address(address: IpAddr) -> Self {
        let base = canonical(address);
        let prefix = if base.is_ipv4() { 32 } else { 128 };
        Self { host: HostPattern::Addresses { base, prefix }, port: None }
    }

    /// Reads `HOST`, `HOST:PORT`, `*.DOMAIN`, `ADDRESS`, `[ADDRESS]:PORT`, `ADDRESS/BITS`,
    /// `localhost:PORT`, `all`.
    pub fn parse(text: &str) -> Result<Self, HostProblem> {
        let text = text.trim();
        if text.is_empty() {
            return Err(HostProblem::Empty);
        }
        if text.contains("://") {
            return Err(HostProblem::Url);
        }
        if text.eq_ignore_ascii_case("all") {
            return Ok(Self { host: HostPattern::All, port: None });
        }
        let (host, port) = split_port(text)?;
        let host = pattern(host)?;
        match (&host, port) {
            (HostPattern::Loopback, None) => Err(HostProblem::LoopbackPort),
            _ => Ok(Self { host, port }),
        }
    }
}

impl NetworkRule {
    /// Parses a denial: the same forms, and also `*`, `*:PORT` and this machine at all ports.
    pub fn parse_denied(text: &str) -> Result<Vec<Self>, HostProblem> {
        let text = text.trim();
        let (host, port) = match text.is_empty() {
            true => return Err(HostProblem::Empty),
            false if text.contains("://") => return Err(HostProblem::Url),
            false => split_port(text)?,
        };
        if host == "*" {
            let every = [HostPattern::All, HostPattern::Loopback];
            return Ok(every.into_iter().map(|host| Self { host, port }).collect());
        }
        Ok(vec![Self { host: pattern(host)?, port }])
    }
}

/// Splits `HOST:PORT`; an IPv6 address with a port is in brackets.
fn split_port(text: &str) -> Result<(&str, Option<u16>), HostProblem> {
    let number = |port: &str| -> Result<u16, HostProblem> {
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = digits.then(|| port.parse().ok()).flatten();
        port.filter(|port| *port > 0).ok_or(HostProblem::Port)
    };
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or(HostProblem::OddAddress)?;
        host.parse::<Ipv6Addr>().map_err(|_| HostProblem::OddAddress)?;
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(number(port)?))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err(HostProblem::Port),
        };
    }
    match text.split_once(':') {
        Some((_, rest)) if rest.contains(':') => Ok((text, None)),
        Some((host, port)) => Ok((host, Some(number(port)?))),
        None => Ok((text, None)),
    }
}

fn pattern(host: &str) -> Result<HostPattern, HostProblem> {
    if let Some((base, bits)) = host.split_once('/') {
        let base: IpAddr = base.parse().map_err(|_| HostProblem::Url)?;
        let most = if base.is_ipv4() { 32 } else { 128 };
        let prefix = bits.parse().ok().filter(|bits| *bits <= most && *bits > 0);
        let prefix = prefix.ok_or(HostProblem::OddAddress)?;
        return match canonical(base) == base {
            true => Ok(HostPattern::Addresses { base, prefix }),
            false => Err(HostProblem::OddAddress),
        };
    }
    if let Some(domain) = host.strip_prefix("*.") {
        return match HostTarget::parse(domain) {
            Some(HostTarget::Name(name)) if name.contains('.') => Ok(HostPattern::Below(name)),
            Some(HostTarget::Name(_)) => Err(HostProblem::Wildcard),
            Some(HostTarget::Address(_)) | None => Err(HostProblem::Name),
        };
    }
    if host.contains('*') {
        return Err(HostProblem::Wildcard);
    }
    match HostTarget::parse(host) {
        Some(target) if target.is_loopback() => Ok(HostPattern::Loopback),
        Some(HostTarget::Name(name)) => Ok(HostPattern::Name(name)),
        Some(HostTarget::Address(address)) => Ok(NetworkRule::address(address).host),
        None if looks_numeric(host) || host.contains(':') => Err(HostProblem::OddAddress),
        None => Err(HostProblem::Name),
    }
}

impl HostPattern {
    fn is_about(&self, target: &HostTarget) -> bool {
        if target.is_loopback() {
            return match (self, target) {
                (Self::Loopback, _) => true,
                (Self::Addresses { base, prefix }, HostTarget::Address(address)) => {
                    shares(*base, *address, *prefix)
                }
                _ => false,
            };
        }
        match (self, target) {
            (Self::All, _) => true,
            (Self::Name(own), HostTarget::Name(name)) => own == name,
            (Self::Below(domain), HostTarget::Name(name)) => {
                name.strip_suffix(domain.as_str()).is_some_and(|rest| rest.ends_with('.'))
            }
            (Self::Addresses { base, prefix }, HostTarget::Address(address)) => {
                shares(*base, *address, *prefix)
            }
            (Self::Loopback | Self::Name(_) | Self::Below(_) | Self::Addresses { .. }, _) => false,
        }
    }
}

/// Whether the first `bits` bits of two addresses are equal.
fn shares(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    match (one, canonical(other)) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            let shift = 32 - u32::from(bits.min(32));
            u32::from(one).checked_shr(shift) == u32::from(other).checked_shr(shift)
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            let shift = 128 - u32::from(bits.min(128));
            u128::from(one).checked_shr(shift) == u128::from(other).checked_shr(shift)
        }
        _ => false,
    }
}

impl HostTarget {
    /// Parses the host of a request. `None` for everything that programs could read differently:
    /// numbers such as `0x7f.1` or `2130706433`, zones, escapes.
    pub fn parse(host: &str) -> Option<Self> {
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if bare.is_some() || host.contains(':') {
            let address: Ipv6Addr = bare.unwrap_or(host).parse().ok()?;
            return Some(Self::Address(canonical(address.into())));
        }
        let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        if let Ok(address) = name.parse::<Ipv4Addr>() {
            return Some(Self::Address(address.into()));
        }
        let label = |label: &str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            (1..=63).contains(&label.len()) && label.bytes().all(plain)
        };
        let good = name.len() <= 253 && name.split('.').all(label) && !looks_numeric(&name);
        good.then_some(Self::Name(name))
    }

    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Name(name) => name == "localhost" || name.ends_with(".localhost"),
            Self::Address(address) => is_loopback(*address),
        }
    }
}

impl fmt::Display for HostTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// Whether a resolver could read the name as a number: no top-level domain is one.
fn looks_numeric(name: &str) -> bool {
    let last = name.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    match hex {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// An IPv4 address inside of an IPv6 one, as IPv4.
fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// An address of this machine; Linux treats the unspecified address as one.
fn is_loopback(address: IpAddr) -> bool {
    let address = canonical(address);
    address.is_loopback() || address.is_unspecified()
}

/// Whether an address is on the public network.
pub fn is_public(address: IpAddr) -> bool {
    match canonical(address) {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    // IANA's special-purpose registry, and multicast.
    const SPECIAL: [([u8; 4], u8); 18] = [
        ([0, 0, 0, 0], 8),
        ([10, 0, 0, 0], 8),
        ([100, 64, 0, 0], 10),
        ([127, 0, 0, 0], 8),
        // The host services of a cloud.
        ([168, 63, 129, 16], 32),
        ([169, 254, 0, 0], 16),
        ([172, 16, 0, 0], 12),
        ([192, 0, 0, 0], 24),
        ([192, 0, 2, 0], 24),
        ([192, 31, 196, 0], 24),
        ([192, 52, 193, 0], 24),
        ([192, 88, 99, 0], 24),
        ([192, 168, 0, 0], 16),
        ([192, 175, 48, 0], 24),
        ([198, 18, 0, 0], 15),
        ([198, 51, 100, 0], 24),
        ([203, 0, 113, 0], 24),
        ([224, 0, 0, 0], 3),
    ];
    !SPECIAL.iter().any(|(base, bits)| shares(IpAddr::from(*base), address.into(), *bits))
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let within = |base: Ipv6Addr, bits: u8| shares(base.into(), address.into(), bits);
    let embedded = |at: usize| {
        let bytes = address.octets();
        Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3])
    };
    // Networks without IPv4 reach it under this prefix.
    if within(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96) {
        return is_public_v4(embedded(12));
    }
    // 6to4 contains the IPv4 address of the destination.
    if within(Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16) {
        return is_public_v4(embedded(2));
    }
    within(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3)
        // Protocols such as Teredo, and documentation.
        && !within(Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23)
        && !within(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32)
        && !within(Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20)
}

impl fmt::Display for NetworkRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let six = |base: &IpAddr| base.is_ipv6() && self.port.is_some();
        match &self.host {
            HostPattern::All => f.write_str("all")?,
            HostPattern::Loopback => f.write_str("localhost")?,
            HostPattern::Name(name) => f.write_str(name)?,
            HostPattern::Below(domain) => write!(f, "*.{domain}")?,
            HostPattern::Addresses { base, prefix: 32 } if base.is_ipv4() => base.fmt(f)?,
            HostPattern::Addresses { base, prefix: 128 } if six(base) => write!(f, "[{base}]")?,
            HostPattern::Addresses { base, prefix: 128 } => base.fmt(f)?,
            HostPattern::Addresses { base, prefix } => write!(f, "{base}/{prefix}")?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for HostProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the host is missing",
            Self::Url => "give a host without scheme and path",
            Self::Port => "the port is not a number from 1 to 65535",
            Self::LoopbackPort => "this machine is allowed by port only: localhost:PORT",
            Self::Wildcard => {
                "a wildcard must come first, before a domain of two parts: *.example.com"
            }
            Self::OddAddress => "not an address in its usual form",
            Self::Name => "not a host name; write international names as xn--...",
        })
    }
}

impl fmt::Display for NetworkRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAllowed => "not among the allowed hosts",
            Self::Denied => "among the denied hosts",
            Self::PrivateAddress => "not a public address",
            Self::Malformed => "not a valid request",
            Self::Unsupported => "a kind of request that the proxy does not support",
            Self::OtherName => "the connection names another host",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(allow: &[&str], deny: &[&str]) -> NetworkRequest {
        let rules = |list: &[&str]| {
            list.iter().map(|text| NetworkRule::parse(text).expect("a rule")).collect()
        };
        NetworkRequest { allow: rules(allow), deny: rules(deny) }
    }

    fn check(request: &NetworkRequest, host: &str, port: u16) -> Option<NetworkRefusal> {
        let target = HostTarget::parse(host).expect("a host");
        request.check(&target, port).err()
    }

    #[test]
    fn rules_are_read_and_written_the_same() {
        for text in [
            "all",
            "example.com",
            "example.com:443",
            "*.example.com",
            "*.example.com:80",
            "10.1.2.3",
            "10.1.2.3:80",
            "10.0.0.0/8",
            "fd00::1",
            "[fd00::1]:80",
            "fd00::/8",
            "localhost:8080",
            "under_score.example",
        ] {
            let rule = NetworkRule::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
            assert_eq!(rule.to_string(), text);
            let json = serde_json::to_string(&rule).expect("JSON");
            assert_eq!(serde_json::from_str::<NetworkRule>(&json).expect("the same"), rule);
        }
        for (text, same) in [
            ("EXAMPLE.com.", "example.com"),
            ("127.0.0.1:80", "localhost:80"),
            ("[::1]:80", "localhost:80"),
            ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
            ("[fd00::1]", "fd00::1"),
        ] {
            assert_eq!(NetworkRule::parse(text).expect(text).to_string(), same);
        }
    }

    #[test]
    fn ambiguous_hosts_are_refused() {
        use HostProblem::{Empty, LoopbackPort, Name, OddAddress, Port, Url, Wildcard};
        for (text, problem) in [
            ("", Empty),
            ("https://example.com", Url),
            ("example.com/x", Url),
            ("example.com:", Port),
            ("example.com:0", Port),
            ("example.com:65536", Port),
            ("example.com:+80", Port),
            ("localhost", LoopbackPort),
            ("127.0.0.1", LoopbackPort),
            ("0.0.0.0", LoopbackPort),
            ("*", Wildcard),
            ("*.com", Wildcard),
            ("a.*.com", Wildcard),
            ("exa*mple.com", Wildcard),
            ("0x7f.1", OddAddress),
            ("2130706433", OddAddress),
            ("017700000001", OddAddress),
            ("127.1", OddAddress),
            ("127.0.0.01:80", OddAddress),
            ("10.0.0.0/33", OddAddress),
            ("fe80::1%eth0", OddAddress),
            ("[fe80::1%eth0]:80", OddAddress),
            ("exämple.com", Name),
            ("a..b", Name),
            ("user@example.com", Name),
            ("a b", Name),
        ] {
            assert_eq!(NetworkRule::parse(text), Err(problem), "{text}");
        }
    }

    #[test]
    fn only_allowed_hosts_pass() {
        use NetworkRefusal::{Denied, NotAllowed, PrivateAddress};
        let some = request(&["example.com", "*.example.org:443", "10.1.0.0/16"], &[]);
        assert_eq!(check(&some, "EXAMPLE.com.", 1), None);
        assert_eq!(check(&some, "www.example.com", 1), Some(NotAllowed));
        assert_eq!(check(&some, "notexample.com", 1), Some(NotAllowed));
        assert_eq!(check(&some, "example.com.evil.net", 1), Some(NotAllowed));
        assert_eq!(check(&some, "a.b.example.org", 443), None);
        assert_eq!(check(&some, "a.example.org", 80), Some(NotAllowed));
        assert_eq!(check(&some, "example.org", 443), Some(NotAllowed));
        assert_eq!(check(&some, "10.1.9.9", 1), None);
        assert_eq!(check(&some, "::ffff:10.1.9.9", 1), None);
        assert_eq!(check(&some, "10.2.0.0", 1), Some(NotAllowed));
        let all = request(&["all"], &["evil.com", "*.evil.com", "9.9.9.9"]);
        assert_eq!(check(&all, "anything.net", 25), None);
        assert_eq!(check(&all, "8.8.8.8", 53), None);
        assert_eq!(check(&all, "9.9.9.9", 53), Some(Denied));
        assert_eq!(check(&all, "evil.com", 1), Some(Denied));
        assert_eq!(check(&all, "www.evil.com", 1), Some(Denied));
        for private in ["10.0.0.1", "169.254.169.254", "::ffff:192.168.0.1", "fd00::1", "fe80::1"] {
            assert_eq!(check(&all, private, 80), Some(PrivateAddress), "{private}");
        }
        for own in ["localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::"] {
            assert_eq!(check(&all, own, 80), Some(NotAllowed), "{own}");
            assert_eq!(check(&request(&["localhost:80"], &[]), own, 80), None, "{own}");
            assert_eq!(check(&request(&["localhost:80"], &[]), own, 81), Some(NotAllowed));
        }
        assert_eq!(check(&NetworkRequest::default(), "example.com", 1), Some(NotAllowed));
    }

    #[test]
    fn a_name_does_not_lead_to_an_address_that_is_not_public() {
        let names = request(&["all", "10.1.2.3", "localhost:80"], &["1.2.3.0/24"]);
        let check = |address: &str, port| {
            names.check_address(address.parse().expect("an address"), port, |own| {
                own == "5.5.5.5".parse::<IpAddr>().expect("an address")
            })
        };
        assert_eq!(check("93.184.216.34", 80), Ok(()));
        assert_eq!(check("10.1.2.3", 80), Ok(()));
        assert_eq!(check("::ffff:10.1.2.3", 80), Ok(()));
        assert_eq!(check("127.0.0.1", 80), Ok(()));
        assert_eq!(check("127.0.0.1", 81), Err(NetworkRefusal::PrivateAddress));
        assert_eq!(check("10.1.2.4", 80), Err(NetworkRefusal::PrivateAddress));
        assert_eq!(check("5.5.5.5", 80), Err(NetworkRefusal::PrivateAddress));
        assert_eq!(check("1.2.3.4", 80), Err(NetworkRefusal::Denied));
        assert_eq!(check("2606:4700::1", 80), Ok(()));
        for private in [
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "2001:0:1::",
            "fec0::1",
            "ff02::1",
            "100.64.0.1",
            "168.63.129.16",
            "224.0.0.1",
            "255.255.255.255",
            "192.0.2.1",
        ] {
            assert_eq!(check(private, 443), Err(NetworkRefusal::PrivateAddress), "{private}");
        }
        assert_eq!(check("64:ff9b::808:808", 443), Ok(()));
    }

    #[test]
    fn odd_spellings_of_a_host_are_no_host() {
        for host in [
            "",
            ".",
            "0x7f000001",
            "0177.0.0.1",
            "127.1",
            "2130706433",
            "a.0x1",
            "a%2eb",
            "a b",
            "[::1",
            "fe80::1%lo",
            "a\0b",
            "a/b",
            "a@b",
            "1.2.3.4.5",
            "ⓔxample.com",
        ] {
            assert_eq!(HostTarget::parse(host), None, "{host:?}");
        }
    }

    #[test]
    fn a_refusal_names_the_rule_that_would_allow_it() {
        let refused = |host: &str, reason, address: Option<&str>| {
            let (host, reason) = (host.to_owned(), Some(reason));
            let address = address.map(|address| address.parse().expect("an address"));
            let used = NetworkUse {
                host,
                port: 443,
                allowed: false,
                reason,
                address,
                requests: 1,
                failed: 0,
                sent_bytes: 0,
                received_bytes: 0,
            };
            used.allowing_rule().map(|rule| rule.to_string())
        };
        let not = NetworkRefusal::NotAllowed;
        assert_eq!(refused("api.example.com", not, None).as_deref(), Some("api.example.com"));
        assert_eq!(refused("localhost", not, None).as_deref(), Some("localhost:443"));
        assert_eq!(refused("8.8.8.8", not, None).as_deref(), Some("8.8.8.8"));
        let private = NetworkRefusal::PrivateAddress;
        assert_eq!(refused("a.b", private, Some("10.0.0.1")).as_deref(), Some("10.0.0.1"));
        assert_eq!(refused("a.b", private, Some("127.0.0.1")).as_deref(), Some("localhost:443"));
        assert_eq!(refused("a.b", NetworkRefusal::Denied, None), None);
    }
}
