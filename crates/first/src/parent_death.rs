//! In a child: notices when the orchestrator dies, and kills this process and all it started.

use std::fs::File;
use std::io::{self, Read};
use std::thread;

use retake_crash::stray_processes::kill_by_run_id;

/// Watches until this process ends. `line` gives end-of-file when the orchestrator is gone.
pub(crate) fn watch(mut line: File, run_id: String) -> io::Result<()> {
    thread::Builder::new().name("first-parent".into()).spawn(move || {
        let mut nothing = [0; 1];
        loop {
            match line.read(&mut nothing) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // An error cannot be waited out either: the parent could die unnoticed.
                _ => break,
            }
        }
        kill_by_run_id(&run_id);
        end_group()
    })?;
    // From now on the kernel's signal would end this process alone, before it can end what it
    // started. The signal belongs to the main thread, which cannot be asked to give it up; what it
    // does belongs to the process. A handler, and not "ignore", which would outlive an exec.
    // SAFETY: zero is a valid `sigaction`, and the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing_to_do as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        if libc::sigaction(death_signal(), &raw const action, std::ptr::null_mut()) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn nothing_to_do(_signal: libc::c_int) {}

/// What the kernel sends a child whose orchestrator dies before the child watches for that itself:
/// one that nobody else uses, and that ends a process which does not expect it.
pub(crate) fn death_signal() -> libc::c_int {
    libc::SIGRTMAX() - 1
}

/// Kills this process, and its group where it leads one.
pub(crate) fn end_group() -> ! {
    // SAFETY: plain numbers; a group is only signalled if this process made it.
    unsafe {
        let own = libc::getpid();
        if libc::getpgrp() == own {
            libc::kill(-own, libc::SIGKILL);
        }
    }
    end_process()
}

/// Kills this process.
pub(crate) fn end_process() -> ! {
    loop {
        // SAFETY: plain numbers. The signal cannot be blocked; it may take a moment to arrive.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}
