//! In a child: detects when the orchestrator dies, and kills this process and all processes it started.

use std::fs::File;
use std::io::{self, Read};
use std::thread;

use retake_crash::stray_processes::kill_by_run_id;

/// Watches until this process ends. `line` gets end-of-file when the orchestrator is gone.
pub(crate) fn watch(mut line: File, run_id: String) -> io::Result<()> {
    thread::Builder::new().name("first-parent".into()).spawn(move || {
        let mut nothing = [0; 1];
        loop {
            match line.read(&mut nothing) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // After an error the parent could die unnoticed.
                _ => break,
            }
        }
        kill_by_run_id(&run_id);
        end_group()
    })?;
    // From now on the kernel's signal would kill this process alone, before it can kill the processes it
    // started. The signal belongs to the main thread, which cannot be made to give it up; its
    // disposition belongs to the process. A handler, not "ignore", which would survive an exec.
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

/// The signal that the kernel sends to a child whose orchestrator dies before the child watches for that itself:
/// one without another use, which terminates a process that does not expect it.
pub(crate) fn death_signal() -> libc::c_int {
    libc::SIGRTMAX() - 1
}

/// Kills this process, and its group if it leads one.
pub(crate) fn end_group() -> ! {
    // SAFETY: plain numbers; a group is only signalled if this process created it.
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
