//! Messages about a confined run's use of the network.

use retake_types::{NetworkUse, SandboxReport, text};

/// How many refused hosts are named after a run.
const NAMED: usize = 10;

/// One line for each refused host, with the option that allows it.
pub(crate) fn refused(report: &SandboxReport) -> Vec<String> {
    let all: Vec<&NetworkUse> = report.network.iter().filter(|used| !used.allowed).collect();
    let mut lines: Vec<String> =
        all.iter().take(NAMED).map(|used| format!("refused: {}", refusal(used))).collect();
    let further: u64 = all.iter().skip(NAMED).map(|used| used.requests).sum();
    let further = further + report.network_unlisted;
    if further > 0 {
        lines.push(format!("refused: {} to further hosts", text::count(further, "request")));
    }
    lines
}

/// Every host that was requested.
pub(crate) fn lines(report: &SandboxReport) -> Vec<String> {
    let line = |used: &NetworkUse| match used.allowed {
        false => format!("refused {}, {}", refusal(used), text::count(used.requests, "request")),
        true => {
            let failed = match used.failed {
                0 => String::new(),
                failed => format!(", {failed} without a connection"),
            };
            format!(
                "{}: {}{failed}, {} sent, {} received",
                place(used),
                text::count(used.requests, "request"),
                text::size(used.sent_bytes),
                text::size(used.received_bytes)
            )
        }
    };
    let mut lines: Vec<String> = report.network.iter().map(line).collect();
    if report.network_unlisted > 0 {
        let further = text::count(report.network_unlisted, "request");
        lines.push(format!("{further} to further hosts"));
    }
    lines
}

fn place(used: &NetworkUse) -> String {
    match used.host.as_str() {
        "" => "a request".to_owned(),
        host if host.contains(':') => format!("[{host}]:{}", used.port),
        host => format!("{host}:{}", used.port),
    }
}

fn refusal(used: &NetworkUse) -> String {
    let why = used.reason.map_or_else(String::new, |reason| reason.to_string());
    let why = match (used.address, used.allowing_rule()) {
        (Some(address), Some(rule)) => format!("{address} is {why}; allow with --allow-net {rule}"),
        (Some(address), None) => format!("{address} is {why}"),
        (None, Some(rule)) => format!("allow with --allow-net {rule}"),
        (None, None) => why,
    };
    format!("{} ({why})", place(used))
}

#[cfg(test)]
mod tests {
    use retake_types::{NetworkRefusal, SandboxLevel};

    use super::*;

    fn used(host: &str, reason: Option<NetworkRefusal>, address: Option<&str>) -> NetworkUse {
        NetworkUse {
            host: host.to_owned(),
            port: 443,
            allowed: reason.is_none(),
            reason,
            address: address.map(|address| address.parse().expect("an address")),
            requests: 2,
            failed: 0,
            sent_bytes: 2048,
            received_bytes: 0,
        }
    }

    fn report(network: Vec<NetworkUse>, network_unlisted: u64) -> SandboxReport {
        let (level, dropped) = (SandboxLevel::Full, Vec::new());
        let (denied, denied_unlisted, left_for_host) = (Vec::new(), 0, None);
        SandboxReport {
            level,
            landlock_abi: 7,
            dropped,
            denied,
            denied_unlisted,
            left_for_host,
            network,
            network_unlisted,
            reported: None,
        }
    }

    #[test]
    fn a_refused_host_is_named_with_the_option_that_allows_it() {
        let private = Some(NetworkRefusal::PrivateAddress);
        let not = Some(NetworkRefusal::NotAllowed);
        let list = vec![
            used("good.example", None, None),
            used("api.example.com", not, None),
            used("corp.example", private, Some("10.0.0.1")),
            used("", Some(NetworkRefusal::Malformed), None),
        ];
        assert_eq!(
            refused(&report(list, 0)),
            [
                "refused: api.example.com:443 (allow with --allow-net api.example.com)",
                "refused: corp.example:443 (10.0.0.1 is not a public address; allow with --allow-net 10.0.0.1)",
                "refused: a request (not a valid request)",
            ]
        );
        let many = (0..15).map(|at| used(&format!("h{at}.example"), not, None)).collect();
        let lines = refused(&report(many, 3));
        assert_eq!(lines.len(), 11);
        assert_eq!(lines[10], "refused: 13 requests to further hosts");
    }
}
