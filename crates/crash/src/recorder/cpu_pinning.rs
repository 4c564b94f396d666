//! Pins recorder and workload to one processor while the workload is a single task.
//!
//! At a watched call one of the two always waits for the other. On two processors each
//! switch wakes a sleeping processor, which takes longer than the call itself. The workload must not
//! notice: it gets all its processors back before it begins a second task, and while it queries them.

use std::mem::{MaybeUninit, size_of};

use libc::{cpu_set_t, pid_t};

/// Pins this thread and a workload to one processor until it is dropped.
#[derive(Debug)]
pub(super) struct CpuPin {
    workload: pid_t,
    one: cpu_set_t,
    /// The processors of the workload and this thread without the pin.
    theirs: cpu_set_t,
    ours: cpu_set_t,
}

impl CpuPin {
    /// `None` if the system does not allow it.
    pub(super) fn new(workload: pid_t) -> Option<Self> {
        let (theirs, ours) = (processors(workload)?, processors(0)?);
        // SAFETY: no arguments.
        let here = usize::try_from(unsafe { libc::sched_getcpu() }).ok()?;
        // SAFETY: the set is a valid one, and the functions check the number against its size.
        let (one, known) = unsafe {
            let mut one: cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(here, &mut one);
            (one, libc::CPU_ISSET(here, &theirs))
        };
        let pin = Self { workload, one, theirs, ours };
        (known && put(workload, &pin.one) && put(0, &pin.one)).then_some(pin)
    }

    /// The workload may see, and use, all its processors for a while.
    pub(super) fn suspend(&self) {
        put(self.workload, &self.theirs);
    }

    pub(super) fn restore(&self) {
        put(self.workload, &self.one);
    }

    /// Removes the pin, also for a task that has just begun.
    pub(super) fn release_task(self, task: pid_t) {
        // A task that is gone needs no processor.
        put(task, &self.theirs);
    }
}

impl Drop for CpuPin {
    fn drop(&mut self) {
        put(self.workload, &self.theirs);
        put(0, &self.ours);
    }
}

/// The processors of a task; 0 is this thread. `None` on machines with more processors than a set holds.
fn processors(task: pid_t) -> Option<cpu_set_t> {
    let mut set = MaybeUninit::<cpu_set_t>::zeroed();
    // SAFETY: the kernel writes at most the given number of bytes.
    let result = unsafe { libc::sched_getaffinity(task, size_of::<cpu_set_t>(), set.as_mut_ptr()) };
    // SAFETY: zeros are a valid set, and the kernel overwrote a part of them.
    (result == 0).then(|| unsafe { set.assume_init() })
}

fn put(task: pid_t, set: &cpu_set_t) -> bool {
    // SAFETY: the kernel reads the given number of bytes.
    unsafe { libc::sched_setaffinity(task, size_of::<cpu_set_t>(), set) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(task: pid_t) -> i32 {
        // SAFETY: a valid set.
        unsafe { libc::CPU_COUNT(&processors(task).unwrap()) }
    }

    #[test]
    fn both_are_on_one_processor_until_released() {
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let task = pid_t::try_from(other.id()).unwrap();
        let before = (count(task), count(0));
        let pin = CpuPin::new(task).unwrap();
        assert_eq!((count(task), count(0)), (1, 1));
        pin.suspend();
        assert_eq!((count(task), count(0)), (before.0, 1));
        pin.restore();
        assert_eq!(count(task), 1);
        pin.release_task(task);
        assert_eq!((count(task), count(0)), before);
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
