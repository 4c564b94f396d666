//! Memory that a runner shares with the process it confines, at the same address in both. The
//! process exists before its plan: while the runner builds the plan, the process creates its
//! network.

use std::cell::Cell;
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

use crate::step::Step;

/// More than the longest plan needs. Untouched pages cost nothing.
const SIZE: usize = 32 << 20;
/// The alignment of everything in it.
const ALIGNMENT: usize = 16;

#[derive(Debug)]
pub(crate) struct PlanMemory {
    base: NonNull<u8>,
    used: Cell<usize>,
    overflown: Cell<bool>,
}

/// The task of the process.
#[derive(Clone, Copy)]
pub(crate) struct PlannedEntry<'a> {
    pub(crate) steps: &'a [Step<'a>],
    /// How many paths the steps hold at once.
    pub(crate) slots: usize,
    pub(crate) filter: &'a [libc::sock_filter],
    /// Empty without notifications.
    pub(crate) notified: &'a [libc::sock_filter],
}

/// The beginning of the memory: the plan, once built, and slots for what the process holds.
struct Head {
    planned: Option<PlannedEntry<'static>>,
    held: *mut Option<OwnedFd>,
}

// SAFETY: plain memory; only its owner in this program uses it.
unsafe impl Send for PlanMemory {}

impl PlanMemory {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a new anonymous mapping.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { base, used: Cell::new(size_of::<Head>()), overflown: Cell::new(false) })
    }

    /// Discards its content. The exclusive borrow proves that there are no references to it.
    pub(crate) fn clear(&mut self) {
        self.used.set(size_of::<Head>());
        self.overflown.set(false);
    }

    /// Reserves memory. If none is left, the plan cannot be published.
    fn reserve(&self, bytes: usize) -> Option<NonNull<u8>> {
        let start = self.used.get().next_multiple_of(ALIGNMENT);
        let end = start.checked_add(bytes).filter(|end| *end <= SIZE);
        self.overflown.set(self.overflown.get() || end.is_none());
        self.used.set(end?);
        // SAFETY: within the mapping, as just checked.
        Some(unsafe { self.base.add(start) })
    }

    pub(crate) fn slice<T: Copy>(&self, items: &[T]) -> &[T] {
        const { assert!(align_of::<T>() <= ALIGNMENT) };
        let Some(place) = self.reserve(size_of_val(items)) else { return &[] };
        let place = place.cast::<T>().as_ptr();
        // SAFETY: the reserved memory is large enough, aligned, and exclusive.
        unsafe {
            std::ptr::copy_nonoverlapping(items.as_ptr(), place, items.len());
            std::slice::from_raw_parts(place, items.len())
        }
    }

    /// Paths come from the system, so they contain no NUL.
    pub(crate) fn path(&self, path: &Path) -> &CStr {
        let bytes = path.as_os_str().as_bytes();
        let Some(place) = self.reserve(bytes.len() + 1) else { return c"" };
        // SAFETY: the reserved memory is large enough and exclusive.
        let written = unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.as_ptr(), bytes.len());
            place.add(bytes.len()).write(0);
            std::slice::from_raw_parts(place.as_ptr(), bytes.len() + 1)
        };
        CStr::from_bytes_with_nul(written).unwrap_or_default()
    }

    /// Publishes a plan to the process; all of its parts are in this memory.
    pub(crate) fn publish(&self, entry: PlannedEntry<'_>) -> io::Result<()> {
        let held = self.reserve(entry.slots * size_of::<Option<OwnedFd>>());
        let (false, Some(held)) = (self.overflown.get(), held) else {
            return Err(io::Error::from_raw_os_error(libc::E2BIG));
        };
        // SAFETY: only `planned` reads it, with the lifetime of this memory.
        let planned =
            Some(unsafe { std::mem::transmute::<PlannedEntry<'_>, PlannedEntry<'static>>(entry) });
        // SAFETY: the mapping begins with the head and is page-aligned; the process does not read
        // before the plan is published.
        unsafe { self.base.cast::<Head>().write(Head { planned, held: held.cast().as_ptr() }) };
        Ok(())
    }

    /// The published plan.
    pub(crate) fn planned(&self) -> Option<PlannedEntry<'_>> {
        // SAFETY: completely written, or zero, which is `None` by the niche of its first reference.
        unsafe { self.base.cast::<Head>().as_ref().planned }
    }

    /// The same with empty slots for what the process holds. Only for the process: the descriptors
    /// are its own.
    pub(crate) fn entry(&mut self) -> Option<(PlannedEntry<'_>, &mut [Option<OwnedFd>])> {
        let entry = self.planned()?;
        // SAFETY: `publish` reserved that many slots, which nothing else refers to.
        unsafe {
            let held = self.base.cast::<Head>().as_ref().held;
            (0..entry.slots).for_each(|slot| held.add(slot).write(None));
            Some((entry, std::slice::from_raw_parts_mut(held, entry.slots)))
        }
    }
}

impl Drop for PlanMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size, and nothing points into it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry<'a>(memory: &'a PlanMemory, paths: &[&str], slots: usize) -> PlannedEntry<'a> {
        let pins = paths.iter().map(|path| Step::Pin(memory.path(Path::new(path))));
        let steps = memory.slice(&pins.collect::<Vec<_>>());
        PlannedEntry { steps, slots, filter: &[], notified: &[] }
    }

    #[test]
    fn a_plan_is_found_as_it_was_published() {
        let mut memory = PlanMemory::new().unwrap();
        assert!(memory.planned().is_none() && memory.entry().is_none());
        for paths in [&["/a", "/b/c d"][..], &["/x"]] {
            memory.clear();
            memory.publish(entry(&memory, paths, 3)).unwrap();
            let (found, places) = memory.entry().unwrap();
            let found = found.steps.iter().map(|step| match step {
                Step::Pin(path) => path.to_str().unwrap(),
                other => panic!("{other:?}"),
            });
            assert_eq!(found.collect::<Vec<_>>(), paths);
            assert_eq!(places.iter().filter(|place| place.is_none()).count(), 3);
        }
    }

    #[test]
    fn a_plan_that_does_not_fit_is_not_published() {
        let mut memory = PlanMemory::new().unwrap();
        for _ in 0..3 {
            memory.slice(&vec![0_u8; SIZE / 2]);
        }
        let published = memory.publish(entry(&memory, &["/a"], 1));
        assert_eq!(published.unwrap_err().raw_os_error(), Some(libc::E2BIG));
        memory.clear();
        memory.publish(entry(&memory, &["/a"], 1)).unwrap();
    }
}
