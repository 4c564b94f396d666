//! The CPUs that may be used, and pinning a process to one of them.

use std::io;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that this process may use.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect())
}

/// Pins a process to a CPU; its children inherit that.
pub fn pin_process(pid: i32, cpu: usize) -> io::Result<()> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(Some(pid), &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_can_be_tied_to_a_cpu_that_it_may_use() {
        let cpus = allowed_cpus().unwrap();
        let cpu = *cpus.last().expect("at least the one that runs this");
        // Pins only the calling thread, which ends with this test.
        std::thread::spawn(move || {
            let thread = rustix::thread::gettid();
            pin_process(thread.as_raw_nonzero().get(), cpu).unwrap();
            assert_eq!(allowed_cpus().unwrap(), [cpu]);
        })
        .join()
        .unwrap();
    }
}
