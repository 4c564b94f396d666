//! The mathematical functions of the program, looked up when first called.
//!
//! Only statistics use them. Linked in the usual way, the loader would map and relocate libm at every
//! start, which costs a short `exec` a twentieth of its time. The functions are libm's own, so the
//! results are the same either way. A function that is missing here is linked in the usual way; a test
//! of `exec` reports it.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

const LIBRARY: &CStr = c"libm.so.6";

macro_rules! functions {
    ($($name:ident($($argument:ident),+);)+) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: f64),+) -> f64 {
            static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
            let name = concat!(stringify!($name), "\0").as_bytes();
            let function = find(&FOUND, CStr::from_bytes_with_nul(name).unwrap_or_default());
            type Function = extern "C" fn($(functions!(@type $argument)),+) -> f64;
            // SAFETY: the C standard gives the function of this name this type.
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(function) };
            function($($argument),+)
        }
    )+};
    (@type $argument:ident) => { f64 };
}

functions! {
    exp(x);
    exp2(x);
    expm1(x);
    log(x);
    log10(x);
    log1p(x);
    log2(x);
    pow(x, y);
    sin(x);
}

/// The library's function of this name. Threads that look it up at the same time find the same one.
fn find(found: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = found.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: both names end with a zero byte. The library is never unloaded.
    let function = unsafe {
        let library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if library.is_null() { ptr::null_mut() } else { libc::dlsym(library, name.as_ptr()) }
    };
    // libm belongs to the C library, without which the program would not run.
    assert!(!function.is_null(), "{LIBRARY:?} has no {name:?}: reinstall the C library");
    found.store(function, Ordering::Relaxed);
    function
}
