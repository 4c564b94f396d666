//! Reads the memory of a stopped task: paths, buffers and vectors that it passed to a call.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;

use libc::{c_void, iovec, pid_t};

const PAGE: usize = 4096;
/// Maximum length of a path, vector or attribute name in the kernel.
const PATH: usize = 4096;
const VECTOR: u64 = 1024;

/// Exactly these bytes, or an error.
pub(super) fn bytes(pid: pid_t, address: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut buffer = Vec::with_capacity(length);
    gather(pid, &[(address, length)], &mut buffer)?;
    Ok(buffer)
}

/// The first `length` bytes of a vector of buffers.
pub(super) fn vector(pid: pid_t, address: u64, count: u64, length: usize) -> io::Result<Vec<u8>> {
    let entries = bytes(pid, address, size_of::<iovec>() * count.min(VECTOR) as usize)?;
    let mut left = length;
    let mut parts = Vec::new();
    for entry in entries.as_chunks::<16>().0 {
        let (base, size) = entry.split_at(8);
        let size = (number(size) as usize).min(left);
        if size > 0 {
            parts.push((number(base), size));
        }
        left -= size;
    }
    let mut buffer = Vec::with_capacity(length - left);
    gather(pid, &parts, &mut buffer)?;
    Ok(buffer)
}

/// A number in the task's memory.
pub(super) fn word(pid: pid_t, address: u64) -> io::Result<u64> {
    Ok(number(&bytes(pid, address, 8)?))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// A NUL-terminated string.
pub(super) fn text(pid: pid_t, address: u64) -> io::Result<OsString> {
    let mut text = Vec::new();
    let mut at = address;
    while text.len() <= PATH {
        // The next page may not exist, and the string may end before it.
        let size = PAGE - at as usize % PAGE;
        // Most paths are short.
        let size = if text.is_empty() { size.min(256) } else { size };
        let piece = bytes(pid, at, size)?;
        if let Some(end) = piece.iter().position(|byte| *byte == 0) {
            text.extend_from_slice(&piece[..end]);
            return Ok(OsString::from_vec(text));
        }
        text.extend_from_slice(&piece);
        at += size as u64;
    }
    Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG))
}

/// Up to `most` bytes from an address on, as far as they exist, into a buffer that is cleared first.
pub(super) fn available(
    pid: pid_t,
    address: u64,
    most: usize,
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    buffer.clear();
    buffer.reserve(most);
    // If the range ends early, the bytes up to its last existing page are returned.
    let mut remote = Vec::with_capacity(most / PAGE + 1);
    let (mut at, end) = (address, address.saturating_add(most as u64));
    while at < end {
        let size = (PAGE - at as usize % PAGE).min((end - at) as usize);
        remote.push(iovec { iov_base: at as *mut c_void, iov_len: size });
        at += size as u64;
    }
    let local = iovec { iov_base: buffer.spare_capacity_mut().as_mut_ptr().cast(), iov_len: most };
    // SAFETY: the local part is reserved memory of that size; only the kernel accesses the remote part,
    // and it refuses addresses that do not exist.
    let read = unsafe {
        libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), remote.len() as _, 0)
    };
    if read < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has written this many bytes.
    unsafe { buffer.set_len(read as usize) };
    Ok(())
}

fn gather(pid: pid_t, parts: &[(u64, usize)], buffer: &mut Vec<u8>) -> io::Result<()> {
    for parts in parts.chunks(VECTOR as usize) {
        let wanted: usize = parts.iter().map(|(_, size)| size).sum();
        let remote: Vec<iovec> = parts
            .iter()
            .map(|(base, size)| iovec { iov_base: *base as *mut c_void, iov_len: *size })
            .collect();
        let start = buffer.len();
        buffer.reserve(wanted);
        let local =
            iovec { iov_base: buffer.spare_capacity_mut().as_mut_ptr().cast(), iov_len: wanted };
        // SAFETY: the local part is reserved memory of that size; only the kernel accesses the remote
        // part, and it refuses addresses that do not exist.
        let read = unsafe {
            libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), remote.len() as _, 0)
        };
        if read < 0 {
            return Err(io::Error::last_os_error());
        }
        if read as usize != wanted {
            return Err(io::Error::from_raw_os_error(libc::EFAULT));
        }
        // SAFETY: the kernel has written all of them.
        unsafe { buffer.set_len(start + wanted) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_process_is_read() {
        let pid = std::process::id() as pid_t;
        let long = "p".repeat(3000) + "\0";
        assert_eq!(text(pid, long.as_ptr() as u64).unwrap().len(), 3000);
        let parts = ["one".as_bytes(), b"", b"two"];
        let entries: Vec<iovec> = parts
            .iter()
            .map(|part| iovec { iov_base: part.as_ptr() as *mut c_void, iov_len: part.len() })
            .collect();
        let address = entries.as_ptr() as u64;
        assert_eq!(vector(pid, address, 3, 5).unwrap(), b"onetw");
        assert!(bytes(pid, 16, 4).is_err());
    }
}
