//! The resources that a run used.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The resources of the tree, as the kernel accounts for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", from = "RecordedUsage", into = "RecordedUsage")]
pub struct Usage {
    pub user_cpu_us: u64,
    pub system_cpu_us: u64,
    /// The largest resident set of a single process.
    pub max_rss_kb: u64,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub blocks_in: u64,
    pub blocks_out: u64,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
}

impl Usage {
    /// Adds the usage of further processes of the tree.
    pub fn add(&mut self, other: &Self) {
        self.user_cpu_us += other.user_cpu_us;
        self.system_cpu_us += other.system_cpu_us;
        self.max_rss_kb = self.max_rss_kb.max(other.max_rss_kb);
        self.minor_faults += other.minor_faults;
        self.major_faults += other.major_faults;
        self.blocks_in += other.blocks_in;
        self.blocks_out += other.blocks_out;
        self.voluntary_switches += other.voluntary_switches;
        self.involuntary_switches += other.involuntary_switches;
    }

    /// Rounded up, for readers of whole milliseconds.
    pub fn user_cpu_ms(&self) -> u64 {
        self.user_cpu_us.div_ceil(1000)
    }

    pub fn system_cpu_ms(&self) -> u64 {
        self.system_cpu_us.div_ceil(1000)
    }

    /// User and system time.
    pub fn cpu(&self) -> Duration {
        Duration::from_micros(self.user_cpu_us + self.system_cpu_us)
    }
}

/// The recorded form, with the milliseconds that every release writes. Earlier releases wrote
/// nothing finer.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RecordedUsage {
    user_cpu_ms: u64,
    system_cpu_ms: u64,
    user_cpu_us: Option<u64>,
    system_cpu_us: Option<u64>,
    max_rss_kb: u64,
    minor_faults: u64,
    major_faults: u64,
    blocks_in: u64,
    blocks_out: u64,
    voluntary_switches: u64,
    involuntary_switches: u64,
}

impl From<RecordedUsage> for Usage {
    fn from(recorded: RecordedUsage) -> Self {
        let micros = |us: Option<u64>, ms: u64| us.unwrap_or(ms.saturating_mul(1000));
        Self {
            user_cpu_us: micros(recorded.user_cpu_us, recorded.user_cpu_ms),
            system_cpu_us: micros(recorded.system_cpu_us, recorded.system_cpu_ms),
            max_rss_kb: recorded.max_rss_kb,
            minor_faults: recorded.minor_faults,
            major_faults: recorded.major_faults,
            blocks_in: recorded.blocks_in,
            blocks_out: recorded.blocks_out,
            voluntary_switches: recorded.voluntary_switches,
            involuntary_switches: recorded.involuntary_switches,
        }
    }
}

impl From<Usage> for RecordedUsage {
    fn from(usage: Usage) -> Self {
        Self {
            user_cpu_ms: usage.user_cpu_ms(),
            system_cpu_ms: usage.system_cpu_ms(),
            user_cpu_us: Some(usage.user_cpu_us),
            system_cpu_us: Some(usage.system_cpu_us),
            max_rss_kb: usage.max_rss_kb,
            minor_faults: usage.minor_faults,
            major_faults: usage.major_faults,
            blocks_in: usage.blocks_in,
            blocks_out: usage.blocks_out,
            voluntary_switches: usage.voluntary_switches,
            involuntary_switches: usage.involuntary_switches,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_keeps_its_microseconds_and_old_records_their_milliseconds() {
        let usage = Usage { user_cpu_us: 2_345, system_cpu_us: 1, ..Usage::default() };
        let written = serde_json::to_value(usage).unwrap();
        assert_eq!((&written["userCpuUs"], &written["userCpuMs"]), (&2_345.into(), &3.into()));
        assert_eq!((&written["systemCpuUs"], &written["systemCpuMs"]), (&1.into(), &1.into()));
        assert_eq!(serde_json::from_value::<Usage>(written).unwrap(), usage);
        let old = r#"{"userCpuMs":3,"systemCpuMs":1,"maxRssKb":7}"#;
        let old: Usage = serde_json::from_str(old).unwrap();
        assert_eq!((old.user_cpu_us, old.system_cpu_us, old.max_rss_kb), (3_000, 1_000, 7));
    }
}
