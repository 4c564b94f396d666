//! Random operations by real threads and processes: the replayed log must equal the disk.
//! The recorder itself checks that at the end of each recording, so a returned recording is
//! the proof.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{FromRawFd, RawFd};
use std::thread;

use retake_crash::operation::Entry;
use retake_crash::recorder::{Recorded, WorkloadOutcome};

use crate::programs::{directory, here};

const SEED: &str = "RANDOM_SEED";
/// The number of recordings; the variable sets a higher one.
const CASES: u64 = 60;

#[test]
fn a_replayed_log_equals_the_directory_on_disk() {
    let cases = std::env::var("RANDOM_CASES").map_or(CASES, |cases| cases.parse().unwrap());
    let first = std::env::var("RANDOM_FIRST").map_or(1, |first| first.parse().unwrap());
    let mut operations = 0;
    for seed in first..first + cases {
        let recorded = recorded(seed);
        let counted = |entry: &&Entry| matches!(entry, Entry::Operation(_));
        operations += recorded.recording.entries.iter().filter(counted).count() as u64;
        // And a log is unchanged after writing and reading it.
        let bytes = retake_crash::log::write(Vec::new(), &recorded.recording).unwrap();
        assert_eq!(
            retake_crash::log::read(&bytes[..]).unwrap().entries,
            recorded.recording.entries
        );
    }
    // Most calls succeed; a workload that does nothing would prove nothing.
    assert!(operations > cases * 100, "{operations}");
}

fn recorded(seed: u64) -> Recorded {
    let outer = directory();
    let root = outer.path().join("root");
    fs::create_dir_all(root.join("was")).unwrap();
    fs::write(root.join("was/there"), "before").unwrap();
    fs::hard_link(root.join("was/there"), root.join("a")).unwrap();
    let recorder = retake_crash::record(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "random::workload", "--test-threads=1"])
        .env(SEED, seed.to_string());
    let recorded = here(recorder, &root).run().unwrap_or_else(|error| panic!("{seed}: {error}"));
    assert_eq!(recorded.outcome, WorkloadOutcome::Exited(0), "{seed}");
    recorded
}

#[test]
#[ignore = "the workload of another test"]
fn workload() {
    let Ok(seed) = std::env::var(SEED) else { return };
    let mut random = Random(seed.parse::<u64>().unwrap().wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut children = Vec::new();
    for _ in 0..random.below(3) {
        let own = random.next();
        // SAFETY: the copy runs on its single thread, and exits without running exit handlers.
        match unsafe { libc::fork() } {
            0 => {
                operate(own, 30);
                // SAFETY: ends the copy.
                unsafe { libc::_exit(0) };
            }
            child => children.push(child),
        }
    }
    let threads: Vec<_> = (0..1 + random.below(3))
        .map(|_| {
            let own = random.next();
            thread::spawn(move || operate(own, 60))
        })
        .collect();
    operate(random.next(), 60);
    if random.below(3) > 0 {
        // Otherwise they are killed in the middle of whatever they do.
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
    for child in children {
        // SAFETY: this process's child.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 33) % limit
    }

    fn name(&mut self) -> CString {
        const NAMES: [&str; 12] =
            ["a", "b", "c", "d", "d/a", "d/b", "e", "e/a", "e/d", "was", "was/there", "../outside"];
        CString::new(NAMES[self.below(12) as usize]).unwrap()
    }
}

/// Does this many random things. Most may fail, because others do the same in the same place.
fn operate(seed: u64, times: u64) {
    let mut random = Random(seed | 1);
    // SAFETY: plain descriptors, NUL-terminated strings, and buffers of the given sizes.
    unsafe {
        for _ in 0..times {
            operation(&mut random);
        }
    }
}

unsafe fn operation(random: &mut Random) {
    let (one, two) = (random.name(), random.name());
    let (p, q) = (one.as_ptr(), two.as_ptr());
    let offset = random.below(20_000) as i64;
    let length = random.below(9_000) as usize;
    let bytes = vec![b'a' + random.below(26) as u8; length];
    // SAFETY: see the caller.
    unsafe {
        match random.below(24) {
            0 => _ = libc::mkdir(p, 0o755),
            1 => _ = libc::rmdir(p),
            2 | 3 => _ = libc::unlink(p),
            4 | 5 => _ = libc::rename(p, q),
            6 => _ = libc::renameat2(libc::AT_FDCWD, p, libc::AT_FDCWD, q, libc::RENAME_EXCHANGE),
            7 => _ = libc::renameat2(libc::AT_FDCWD, p, libc::AT_FDCWD, q, libc::RENAME_NOREPLACE),
            8 => _ = libc::link(p, q),
            9 => _ = libc::symlink(p, q),
            10 => _ = libc::truncate(p, offset),
            11 => _ = libc::chmod(p, 0o700 + random.below(64) as u32),
            12 => _ = libc::mknod(p, libc::S_IFREG | 0o644, 0),
            13 => {
                let fd = libc::open(c".".as_ptr(), libc::O_TMPFILE | libc::O_RDWR, 0o600);
                libc::write(fd, bytes.as_ptr().cast(), length);
                libc::linkat(fd, c"".as_ptr(), libc::AT_FDCWD, q, libc::AT_EMPTY_PATH);
                libc::close(fd);
            }
            kind => {
                let flags = [
                    libc::O_CREAT,
                    libc::O_CREAT | libc::O_TRUNC,
                    libc::O_CREAT | libc::O_APPEND,
                    libc::O_TRUNC,
                    libc::O_CREAT | libc::O_EXCL,
                    libc::O_CREAT | libc::O_DSYNC,
                ][random.below(6) as usize];
                let fd = libc::open(p, flags | libc::O_RDWR | libc::O_CLOEXEC, 0o640);
                if fd < 0 {
                    return;
                }
                change(random, kind, fd, offset, &bytes);
                if random.below(4) > 0 {
                    libc::close(fd);
                }
            }
        }
    }
}

unsafe fn change(random: &mut Random, kind: u64, fd: RawFd, offset: i64, bytes: &[u8]) {
    let (data, length) = (bytes.as_ptr(), bytes.len());
    // SAFETY: see the caller.
    unsafe {
        match kind {
            14 | 15 => _ = libc::write(fd, data.cast(), length),
            16 => _ = libc::pwrite(fd, data.cast(), length, offset),
            17 => {
                let half = length / 2;
                let part = |from: usize, size: usize| libc::iovec {
                    iov_base: data.add(from).cast_mut().cast(),
                    iov_len: size,
                };
                let parts = [part(0, half), part(half, length - half)];
                libc::pwritev(fd, parts.as_ptr(), 2, offset);
                libc::writev(fd, parts.as_ptr(), 2);
            }
            18 => _ = libc::ftruncate(fd, offset),
            19 => {
                let modes = [
                    0,
                    libc::FALLOC_FL_KEEP_SIZE,
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    libc::FALLOC_FL_ZERO_RANGE,
                ];
                let mode = modes[random.below(4) as usize];
                libc::fallocate(fd, mode, offset, 1 + length as i64);
            }
            20 => {
                let from = libc::open(c"a".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
                let mut to = offset;
                libc::copy_file_range(from, std::ptr::null_mut(), fd, &raw mut to, 5000, 0);
                libc::sendfile(fd, from, std::ptr::null_mut(), 3000);
                libc::close(from);
            }
            21 => {
                let file = File::from_raw_fd(libc::dup(fd));
                _ = file.sync_data();
                libc::fsync(fd);
            }
            22 => store(random, bytes),
            _ => {
                let mut pipe = [0; 2];
                libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC);
                libc::write(pipe[1], data.cast(), length.min(4000));
                let mut to = offset;
                let to = &raw mut to;
                libc::splice(pipe[0], std::ptr::null_mut(), fd, to, length.min(4000), 0);
                libc::close(pipe[0]);
                libc::close(pipe[1]);
            }
        }
    }
}

/// Stores into a mapping of a file that no other thread cuts in the meantime.
unsafe fn store(random: &mut Random, bytes: &[u8]) {
    // SAFETY: the mapping is as long as the file and gone before its last descriptor.
    unsafe {
        let name = CString::new(format!("map-{}", libc::gettid())).unwrap();
        let fd = libc::open(name.as_ptr(), libc::O_CREAT | libc::O_RDWR | libc::O_CLOEXEC, 0o600);
        if fd < 0 || libc::ftruncate(fd, 16 << 10) < 0 {
            return;
        }
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let map = libc::mmap(std::ptr::null_mut(), 16 << 10, rights, libc::MAP_SHARED, fd, 0);
        if map != libc::MAP_FAILED {
            let at = random.below(7_000) as usize;
            map.cast::<u8>().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            if random.below(2) == 0 {
                libc::msync(map, 16 << 10, libc::MS_SYNC);
            }
            map.cast::<u8>().add(at / 2).write(b'!');
            if random.below(2) == 0 {
                libc::munmap(map, 16 << 10);
            }
        }
        libc::close(fd);
    }
}
