//! Arbitrary values for property tests.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use crate::request::{
    Capture, CommandForm, CommandRequest, EffectsRequest, EnvironmentRequest, LoopPosition,
    MetricSource, MetricsRequest, OutputRequest, RedactionRequest, RunRequest, StdinSource,
    WantedMetric,
};
use crate::{
    Better, CorrelationIds, EnvMode, HostPattern, Kind, Limits, ListedWrites, LoopId,
    NetworkRequest, NetworkRule, OsText, PathGrant, PathRule, RunId, SandboxMode, SandboxRequest,
    ShellMode, ShownAt, Stream,
};

/// Any request, with every field set to any value, including invalid UTF-8 and requests that no
/// machine could execute.
pub fn request() -> impl Strategy<Value = RunRequest> {
    let identity = (any::<[u8; 16]>(), position(), command(), os_text(), environment());
    let process = (stdin(), any::<bool>(), any::<bool>(), any_u64(), any_u64(), limits());
    let observed = (option::of(any::<i32>()), output(), redaction(), effects());
    let named = (sandbox(), text_map(), correlation_ids());
    (identity, process, observed, named).prop_map(|(identity, process, observed, named)| {
        let (id, position, command, cwd, environment) = identity;
        let (stdin, pty, detach, timeout_ms, grace_ms, limits) = process;
        let (nice, output, redaction, effects) = observed;
        let (sandbox, labels, correlation_ids) = named;
        RunRequest {
            id: RunId::from_bytes(id),
            position,
            command,
            cwd,
            environment,
            stdin,
            pty,
            detach,
            timeout_ms,
            grace_ms,
            limits,
            nice,
            output,
            redaction,
            effects,
            sandbox,
            labels,
            correlation_ids,
        }
    })
}

/// Any bytes; mostly text.
pub fn os_text() -> impl Strategy<Value = OsText> {
    prop_oneof![
        3 => any::<String>().prop_map(OsText::from),
        1 => vec(any::<u8>(), 0..12).prop_map(OsText::from_bytes),
        1 => Just(OsText::from_bytes(vec![b'a', 0xff, 0xfe, b'z'])),
    ]
}

fn sandbox() -> impl Strategy<Value = SandboxRequest> {
    use PathGrant::{AllowRead, AllowWrite, DenyRead, DenyWrite};
    let mode = select(vec![SandboxMode::Off, SandboxMode::BestEffort, SandboxMode::Strict]);
    let grant = select(vec![AllowRead, DenyRead, AllowWrite, DenyWrite]);
    let rule = (grant, os_text()).prop_map(|(grant, path)| PathRule::new(grant, path));
    let listed = (1_u8..=10, any::<bool>())
        .prop_map(|(search_depth, git_config)| ListedWrites { search_depth, git_config });
    let rules = (vec(rule, 0..3), vec(os_text(), 0..3), network());
    let further = (any::<bool>(), vec(any::<String>(), 0..3), option::of(listed));
    let shown = (os_text(), os_text()).prop_map(|(path, at)| ShownAt { path, at });
    (mode, rules, further, vec(shown, 0..2)).prop_map(
        |(mode, (paths, sockets, network), (quarantine, withheld, listed_writes), shown_at)| {
            SandboxRequest {
                mode,
                paths,
                sockets,
                network,
                quarantine,
                withheld,
                listed_writes,
                shown_at,
            }
        },
    )
}

fn network() -> impl Strategy<Value = NetworkRequest> {
    let host = prop_oneof![
        Just(HostPattern::All),
        Just(HostPattern::Loopback),
        any::<String>().prop_map(HostPattern::Name),
        any::<String>().prop_map(HostPattern::Below),
        (any::<std::net::IpAddr>(), any::<u8>())
            .prop_map(|(base, prefix)| HostPattern::Addresses { base, prefix }),
    ];
    let rule = (host, option::of(any::<u16>())).prop_map(|(host, port)| NetworkRule { host, port });
    let rules = vec(rule, 0..3);
    (rules.clone(), rules).prop_map(|(allow, deny)| NetworkRequest { allow, deny })
}

fn any_u64() -> impl Strategy<Value = Option<u64>> {
    option::of(any::<u64>())
}

fn text_map() -> impl Strategy<Value = BTreeMap<String, String>> {
    btree_map(any::<String>(), any::<String>(), 0..4)
}

fn position() -> impl Strategy<Value = LoopPosition> {
    let kind = select(vec![Kind::Exec, Kind::Agent, Kind::Matrix, Kind::Crash]);
    (kind, any::<[u8; 16]>(), any::<u64>()).prop_map(|(kind, id, iteration)| LoopPosition {
        kind,
        id: LoopId::from_bytes(id),
        iteration,
    })
}

fn command() -> impl Strategy<Value = CommandRequest> {
    let mode = select(vec![ShellMode::Auto, ShellMode::Always, ShellMode::Never]);
    let form = prop_oneof![
        mode.prop_map(CommandForm::Line),
        vec(os_text(), 0..4).prop_map(CommandForm::Arguments),
        vec(os_text(), 0..4).prop_map(CommandForm::ShellArguments),
    ];
    (any::<String>(), form).prop_map(|(text, form)| CommandRequest { text, form })
}

fn variables() -> impl Strategy<Value = Vec<(OsText, OsText)>> {
    vec((os_text(), os_text()), 0..4)
}

fn environment() -> impl Strategy<Value = EnvironmentRequest> {
    let mode = select(vec![EnvMode::Inherit, EnvMode::Merge, EnvMode::Replace]);
    let unset = vec(os_text(), 0..3);
    let from_host = vec(any::<String>(), 0..3);
    (mode, variables(), unset, option::of(variables()), from_host).prop_map(
        |(mode, set, unset, base, from_host)| EnvironmentRequest {
            mode,
            set,
            unset,
            base,
            from_host,
        },
    )
}

fn stdin() -> impl Strategy<Value = StdinSource> {
    prop_oneof![
        Just(StdinSource::Null),
        Just(StdinSource::Inherit),
        os_text().prop_map(StdinSource::File),
        Just(StdinSource::Provided),
    ]
}

fn limits() -> impl Strategy<Value = Limits> {
    (any_u64(), any_u64(), any_u64(), any_u64(), any_u64()).prop_map(
        |(memory_bytes, cpu_ms, procs, files, fsize_bytes)| Limits {
            memory_bytes,
            cpu_ms,
            procs,
            files,
            fsize_bytes,
        },
    )
}

fn output() -> impl Strategy<Value = OutputRequest> {
    (select(Capture::ALL.to_vec()), any_u64())
        .prop_map(|(capture, max_bytes)| OutputRequest { capture, max_bytes })
}

fn redaction() -> impl Strategy<Value = RedactionRequest> {
    (any::<bool>(), vec(any::<String>(), 0..3))
        .prop_map(|(enabled, secrets)| RedactionRequest { enabled, secrets })
}

fn wanted_metric() -> impl Strategy<Value = WantedMetric> {
    let stream = option::of(select(Stream::BOTH.to_vec()));
    let texts = || (any::<String>(), any::<String>());
    let source = prop_oneof![
        Just(MetricSource::Reported),
        (stream, any::<String>())
            .prop_map(|(stream, pattern)| MetricSource::Output { stream, pattern }),
        texts().prop_map(|(path, pattern)| MetricSource::FilePattern { path, pattern }),
        texts().prop_map(|(path, pointer)| MetricSource::FilePointer { path, pointer }),
    ];
    let better = option::of(select(vec![Better::Lower, Better::Higher]));
    (any::<String>(), option::of(any::<String>()), better, source)
        .prop_map(|(name, unit, better, source)| WantedMetric { name, unit, better, source })
}

fn effects() -> impl Strategy<Value = EffectsRequest> {
    let metrics = option::of(
        (any_u64(), vec(wanted_metric(), 0..3))
            .prop_map(|(planned, wanted)| MetricsRequest { planned, wanted }),
    );
    (option::of(os_text()), any::<bool>(), any::<bool>(), metrics)
        .prop_map(|(track, exact, tests, metrics)| EffectsRequest { track, exact, tests, metrics })
}

fn correlation_ids() -> impl Strategy<Value = CorrelationIds> {
    vec(option::of(any::<String>()), 7).prop_map(|ids| {
        let mut ids = ids.into_iter();
        let mut next = || ids.next().flatten();
        CorrelationIds {
            run_id: next(),
            session_id: next(),
            task_id: next(),
            step_id: next(),
            tool_call_id: next(),
            worktree_id: next(),
            repo_sha: next(),
        }
    })
}
