//! This machine and the effective user: their names, the user's directories, and properties of the
//! machine that may affect a measurement.

use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use retake_types::loop_record::matrix::MatrixLoopPlan;

/// The name of this machine.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Properties of this machine that may affect a measurement: name and value.
pub fn environment() -> BTreeMap<String, String> {
    let read = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let field = |text: Option<String>, name: &str| {
        let line = text?.lines().find(|line| line.starts_with(name))?.to_owned();
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    // Reads only the first lines: with many CPUs, the kernel takes longer for all of it than a short run.
    let first = |path: &str| {
        let mut buffer = vec![0; 4096];
        let length = std::fs::File::open(path).and_then(|mut file| file.read(&mut buffer)).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    };
    let cpus = std::thread::available_parallelism().map(|count| count.to_string()).ok();
    let facts = [
        (MatrixLoopPlan::HOST, Some(host())),
        ("kernel", read("/proc/sys/kernel/osrelease")),
        ("cpu", field(first("/proc/cpuinfo"), "model name")),
        ("cpus", cpus),
        ("memory", field(read("/proc/meminfo"), "MemTotal")),
        ("governor", read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        ("turbo off", read("/sys/devices/system/cpu/intel_pstate/no_turbo")),
        ("load at start", read("/proc/loadavg")),
        ("retake", Some(env!("CARGO_PKG_VERSION").to_owned())),
    ];
    facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// The name of the effective user, which never changes.
pub fn user() -> String {
    static USER: OnceLock<String> = OnceLock::new();
    let look_up = || {
        let uid = rustix::process::geteuid().as_raw();
        in_passwd_file(uid).map_or_else(|| uid.to_string(), |account| account.name)
    };
    USER.get_or_init(look_up).clone()
}

/// A user's name with the id, if the name is known.
pub fn user_by_id(id: u32) -> String {
    match account(id) {
        Some(account) => format!("{} (user id {id})", account.name),
        None => format!("user id {id}"),
    }
}

/// A directory of the user: the value of the variable, or a path below the home directory. The home
/// directory is `$HOME`, else that of the password database.
pub fn user_directory(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |name: &str| {
        let path = std::env::var_os(name).map(PathBuf::from);
        path.filter(|path| path.is_absolute() && !belongs_to_another(path))
    };
    let home = || {
        let uid = rustix::process::geteuid().as_raw();
        absolute("HOME").or_else(|| account(uid).map(|account| account.home))
    };
    absolute(variable).or_else(|| Some(home()?.join(below_home)))
}

/// Whether root runs with another user's directory, as under `sudo`. Files that root creates there
/// would obstruct that user.
fn belongs_to_another(directory: &Path) -> bool {
    if !rustix::process::geteuid().is_root() {
        return false;
    }
    let existing = directory.ancestors().find_map(|path| path.metadata().ok());
    existing.is_some_and(|metadata| metadata.uid() != 0)
}

/// A user's entry in the password database.
struct Account {
    name: String,
    home: PathBuf,
}

fn account(id: u32) -> Option<Account> {
    in_passwd_file(id).or_else(|| in_password_database(id)).filter(|a| a.home.is_absolute())
}

/// The usual case, without loading further name services.
fn in_passwd_file(id: u32) -> Option<Account> {
    let known = std::fs::read("/etc/passwd").ok()?;
    known.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = String::from_utf8_lossy(fields.next()?).into_owned();
        let found = fields.nth(1)? == id.to_string().as_bytes();
        let home = PathBuf::from(OsStr::from_bytes(fields.nth(2)?));
        found.then_some(Account { name, home })
    })
}

fn in_password_database(id: u32) -> Option<Account> {
    let mut buffer = vec![0; 1 << 14];
    let mut entry = std::mem::MaybeUninit::<libc::passwd>::uninit();
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are valid during the call, and the length is that of the buffer.
    let failed = unsafe {
        libc::getpwuid_r(id, entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &raw mut found)
    };
    if failed != 0 || found.is_null() {
        return None;
    }
    // SAFETY: `found` points to `entry`, which the call filled, with texts in `buffer`.
    let (name, home) = unsafe {
        let entry = &*found;
        if entry.pw_name.is_null() || entry.pw_dir.is_null() {
            return None;
        }
        (CStr::from_ptr(entry.pw_name), CStr::from_ptr(entry.pw_dir))
    };
    Some(Account {
        name: name.to_string_lossy().into_owned(),
        home: PathBuf::from(OsStr::from_bytes(home.to_bytes())),
    })
}
