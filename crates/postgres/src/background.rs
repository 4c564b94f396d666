//! A push that nobody waits for: a process of its own that ends by itself.
//!
//! One at a time for each record. One that finds the database down leaves a note and gives up; the
//! next one sends what this one did not.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use retake_engine::PARENT_VARIABLE;

/// The turn to push this record; `None` while another process has it.
pub fn turn(store: &Path) -> Option<File> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(store.join("push.lock"))
        .ok()?;
    // SAFETY: the descriptor is open.
    let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
    locked.then_some(file)
}

/// Leaves what went wrong for whoever wonders; nothing once it went well.
pub fn note(store: &Path, problem: Option<&str>) {
    let path = store.join("push.log");
    // A note that cannot be left changes nothing: the next push says the same.
    _ = match problem {
        Some(problem) => std::fs::write(&path, format!("{} {problem}\n", jiff::Timestamp::now())),
        None => std::fs::remove_file(&path),
    };
}

/// What went wrong with the last push, and when; `None` if it went well.
pub fn owed(store: &Path) -> Option<String> {
    let text = std::fs::read_to_string(store.join("push.log")).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Starts a push and does not wait for it. Inside another run it is left to that run's end, which
/// would otherwise take the process for something the command left behind.
pub fn in_background(store: &Path) {
    if std::env::var_os(PARENT_VARIABLE).is_some() {
        return;
    }
    // What cannot be started is made up for by the next one.
    _ = spawn(store);
}

fn spawn(store: &Path) -> Option<()> {
    let words: [&[u8]; 6] =
        [b"retake", b"--store", store.as_os_str().as_bytes(), b"runs", b"push", b"--background"];
    let words: Vec<CString> = words.into_iter().map(CString::new).collect::<Result<_, _>>().ok()?;
    let mut argv: Vec<*mut libc::c_char> =
        words.iter().map(|word| word.as_ptr().cast_mut()).collect();
    argv.push(std::ptr::null_mut());
    // SAFETY: the structures are initialised before they are used and destroyed after; all strings
    // outlive the call; `environ` is not changed by this program.
    unsafe {
        let mut actions: libc::posix_spawn_file_actions_t = std::mem::zeroed();
        let mut attributes: libc::posix_spawnattr_t = std::mem::zeroed();
        if libc::posix_spawn_file_actions_init(&raw mut actions) != 0 {
            return None;
        }
        if libc::posix_spawnattr_init(&raw mut attributes) != 0 {
            libc::posix_spawn_file_actions_destroy(&raw mut actions);
            return None;
        }
        for fd in 0..3 {
            libc::posix_spawn_file_actions_addopen(
                &raw mut actions,
                fd,
                c"/dev/null".as_ptr(),
                libc::O_RDWR,
                0,
            );
        }
        // In a session of its own a closed terminal does not end it.
        let flags = libc::POSIX_SPAWN_SETSID;
        libc::posix_spawnattr_setflags(&raw mut attributes, flags as libc::c_short);
        let mut pid = 0;
        let done = libc::posix_spawn(
            &raw mut pid,
            c"/proc/self/exe".as_ptr(),
            &raw const actions,
            &raw const attributes,
            argv.as_ptr(),
            environ,
        );
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
        libc::posix_spawnattr_destroy(&raw mut attributes);
        (done == 0).then_some(())
    }
}

unsafe extern "C" {
    static environ: *const *mut libc::c_char;
}
