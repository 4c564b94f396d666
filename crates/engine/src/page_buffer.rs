//! A buffer for reading.

use std::alloc::{self, Layout};
use std::ptr::NonNull;

/// Reading into memory a few bytes past a page boundary, as in a large `Vec`, is two to four times
/// slower than into page-aligned memory.
const LAYOUT: Layout = match Layout::from_size_align(256 << 10, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// A page-aligned buffer, allocated on first use: a silent run needs none.
pub(crate) struct PageBuffer {
    memory: Option<NonNull<u8>>,
}

impl PageBuffer {
    pub(crate) fn new() -> Self {
        Self { memory: None }
    }

    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        let memory = *self.memory.get_or_insert_with(|| {
            // SAFETY: the layout is not empty.
            NonNull::new(unsafe { alloc::alloc_zeroed(LAYOUT) })
                .unwrap_or_else(|| alloc::handle_alloc_error(LAYOUT))
        });
        // SAFETY: allocated with this layout, zeroed, and borrowed as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), LAYOUT.size()) }
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory {
            // SAFETY: allocated with the same layout.
            unsafe { alloc::dealloc(memory.as_ptr(), LAYOUT) };
        }
    }
}
