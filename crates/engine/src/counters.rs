//! Processor counters for everything that a keeper starts: `perf_event_open`, user space only.
//!
//! The counters are attached to the keeper and inherited by its children, whose counts are added
//! when they exit. The keeper's own work is counted separately without inheritance, and subtracted.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Mutex;

use crate::keeper::Keeper;

/// An event to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    Instructions,
    Cycles,
    CacheMisses,
    /// Nanoseconds of CPU time, which every kernel can count.
    TaskClock,
}

impl Counter {
    /// The events that the processor counts.
    pub const HARDWARE: [Self; 3] = [Self::Instructions, Self::Cycles, Self::CacheMisses];

    /// The kernel's type and number of the event.
    fn event(self) -> (u32, u64) {
        match self {
            Self::Instructions => (0, 1),
            Self::Cycles => (0, 0),
            Self::CacheMisses => (0, 3),
            Self::TaskClock => (1, 1),
        }
    }
}

/// The beginning of the kernel's `struct perf_event_attr`, in its first size.
#[repr(C)]
#[derive(Default)]
struct EventAttributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}

/// Also reads how long an event was enabled and actually counted.
const READ_TIMES: u64 = 0b11;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// Open counters of one keeper.
#[derive(Debug)]
pub struct Counters {
    pid: i32,
    events: Vec<Event>,
}

#[derive(Debug)]
struct Event {
    counter: Counter,
    all: Mutex<File>,
    keeper: Mutex<File>,
}

/// The counts at one moment.
#[derive(Clone, Debug, Default)]
pub struct CounterReading(Vec<(Counter, f64)>);

impl Counters {
    /// Opens the available ones of the wanted counters; an error if none is available.
    pub fn open(keeper: &Keeper, wanted: &[Counter]) -> io::Result<Self> {
        let pid = keeper.pid();
        let mut events = Vec::new();
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for &counter in wanted {
            let opened =
                open(pid, counter, INHERIT).and_then(|all| Ok((all, open(pid, counter, 0)?)));
            match opened {
                Ok((all, keeper)) => {
                    let (all, keeper) = (Mutex::new(all), Mutex::new(keeper));
                    events.push(Event { counter, all, keeper });
                }
                Err(error) => failure = error,
            }
        }
        if events.is_empty() { Err(failure) } else { Ok(Self { pid, events }) }
    }

    /// Whether these are the counters of this keeper: a killed keeper is replaced.
    pub fn belong_to(&self, keeper: &Keeper) -> bool {
        self.pid == keeper.pid()
    }

    /// The counts so far. Unreadable counters are left out.
    pub fn read(&self) -> CounterReading {
        let value = |file: &Mutex<File>| {
            let mut file = file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let mut words = [0; 24];
            file.read_exact(&mut words).ok()?;
            let word = |at: usize| {
                let bytes = words[at..at + 8].try_into().unwrap_or_default();
                u64::from_ne_bytes(bytes) as f64
            };
            let (count, wanted, counted) = (word(0), word(8), word(16));
            // If there are more events than the processor can count, they take turns.
            Some(if counted > 0.0 { count * wanted / counted } else { count })
        };
        let events = self.events.iter();
        let read = events
            .filter_map(|event| Some((event.counter, value(&event.all)? - value(&event.keeper)?)));
        CounterReading(read.collect())
    }
}

impl CounterReading {
    /// The counts since an earlier reading.
    pub fn since(&self, earlier: &Self) -> Vec<(Counter, u64)> {
        let before = |counter| earlier.0.iter().find(|(other, _)| *other == counter);
        let difference = |&(counter, now): &(Counter, f64)| {
            let (_, before) = before(counter)?;
            // Rounding of events that take turns must not yield a negative count.
            Some((counter, (now - before).max(0.0).round() as u64))
        };
        self.0.iter().filter_map(difference).collect()
    }
}

fn open(pid: i32, counter: Counter, flags: u64) -> io::Result<File> {
    let (kind, config) = counter.event();
    let attributes = EventAttributes {
        kind,
        size: u32::try_from(size_of::<EventAttributes>()).unwrap_or_default(),
        config,
        read_format: READ_TIMES,
        flags: flags | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
        ..EventAttributes::default()
    };
    // SAFETY: the structure has the stated size, and outlives the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            pid,
            -1 as libc::c_int,
            -1 as libc::c_int,
            CLOSE_ON_EXEC,
        )
    };
    match i32::try_from(fd) {
        // SAFETY: a new descriptor from the kernel, owned only here.
        Ok(fd @ 0..) => Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) })),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cancel, Command, KeeperSettings, Launch, LiveOutput};

    /// Counts the kernel's clock, which works like the processor's counters: many test machines
    /// lack those.
    #[test]
    fn counters_cover_a_command_and_its_children_but_not_the_keeper() {
        let mut keeper = Keeper::start(KeeperSettings::default()).unwrap();
        let Ok(counters) = Counters::open(&keeper, &[Counter::TaskClock]) else {
            return; // Not permitted here.
        };
        assert!(counters.belong_to(&keeper));
        let mut counted = |script: &str| {
            let before = counters.read();
            let command = Command::new(Launch::new(["sh", "-c", script])).unwrap();
            let cancel = Cancel::new().unwrap();
            let ended = keeper.run(&command, &cancel, LiveOutput::default(), &mut |_| {});
            assert!(ended.outcome.success(), "{script}");
            let [(Counter::TaskClock, nanos)] = counters.read().since(&before)[..] else {
                panic!("one counter")
            };
            (nanos as f64 / 1e3, (ended.usage.user_cpu_us + ended.usage.system_cpu_us) as f64)
        };
        let little = counted("true");
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
        let much = counted(&format!("sh -c '{busy}'; true"));
        assert!(much.0 > 3.0 * little.0, "{much:?} {little:?}");
        // Compare with the kernel's own accounting of the same processes.
        assert!(much.0 > 0.5 * much.1 && much.0 < 1.5 * much.1, "{much:?}");
    }
}
