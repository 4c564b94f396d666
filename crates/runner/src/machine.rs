//! The names of this machine and of the user retake acts as.

use std::sync::OnceLock;

/// The name of this machine.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The name of the user retake acts as, which stays the same.
pub fn user() -> String {
    static USER: OnceLock<String> = OnceLock::new();
    let look_up = || {
        let uid = rustix::process::geteuid().as_raw().to_string();
        let known = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let name = known.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)? == uid).then(|| name.to_owned())
        });
        name.unwrap_or(uid)
    };
    USER.get_or_init(look_up).clone()
}
