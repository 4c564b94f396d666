//! Programs with debug information are compiled, recorded, and found again line by line.

#![expect(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use retake_crash::operation::{Action, Entry, Recording};
use retake_symbols::{Place, Symbols};

const C: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static int put(const char *path, const char *text) {
    int fd = open(path, O_CREAT | O_WRONLY, 0644); /* create */
    char large[30000];
    memset(large, text[0], sizeof large);
    return write(fd, large, sizeof large) > 0 ? fd : -1; /* write */
}
static void commit(const char *from, const char *to) {
    rename(from, to); /* rename */
}
int main(int argc, char **argv) {
    if (chdir(argv[1])) return 1;
    int fd = put("t", "hello");
    commit("t", "a");
    fsync(fd); /* sync */
    return 0;
}
"#;

const RUST: &str = r#"
use std::fs::{self, File};
use std::io::Write;
struct Store;
impl Store {
    #[inline(never)]
    fn put(&self) -> File {
        let mut file = File::create("t").unwrap(); // create
        file.write_all(b"hello").unwrap(); // write
        file
    }
    fn commit(&self) {
        let each = |from: &str| fs::rename(from, "a").unwrap(); // rename
        each("t");
    }
}
fn main() {
    std::env::set_current_dir(std::env::args().nth(1).unwrap()).unwrap();
    let file = Store.put();
    Store.commit();
    file.sync_all().unwrap(); // sync
}
"#;

const PYTHON: &str = r#"
import os, sys, pathlib

class Store:
    def put(self):
        file = open("t", "w")  # create
        file.write("hello")
        file.flush()  # write
        return file

def commit():
    pathlib.Path("t").rename("a")  # rename

os.chdir(sys.argv[1])
file = Store().put()
commit()
os.fsync(file.fileno())  # sync
"#;

fn record(program: &Path, arguments: &[&Path]) -> Recording {
    let root = tempfile::tempdir().unwrap();
    let arguments = arguments.iter().map(OsString::from).chain([root.path().into()]);
    let recorder = retake_crash::record(program).args(arguments).root(root.path()).stacks(true);
    recorder.run().unwrap().recording
}

/// The places of the creation, the write, the rename and the sync.
fn places(recording: &Recording) -> [(&'static str, Option<Place>); 4] {
    let places = Symbols::new(&recording.stacks).places();
    let place = |with: fn(&Action) -> bool| {
        let operations = recording.entries.iter().filter_map(|entry| match entry {
            Entry::Operation(operation) => Some(&operation.action),
            _ => None,
        });
        let at = operations.into_iter().position(with).unwrap();
        places.get(at).cloned().flatten()
    };
    [
        ("create", place(|action| matches!(action, Action::Create { .. }))),
        ("write", place(|action| matches!(action, Action::Write { .. }))),
        ("rename", place(|action| matches!(action, Action::Rename { .. }))),
        ("sync", place(|action| matches!(action, Action::Sync { .. }))),
    ]
}

/// The line of the source that ends in such a comment.
fn line(source: &str, mark: &str) -> u32 {
    let at = source.lines().position(|line| line.trim_end_matches(" */").ends_with(mark));
    at.unwrap() as u32 + 1
}

#[track_caller]
fn are_found(recording: &Recording, source: &str, comment: &str, functions: [&str; 4]) {
    for ((mark, place), function) in places(recording).into_iter().zip(functions) {
        let Some(place) = place else { panic!("{mark} has no place") };
        let expected = line(source, &format!("{comment} {mark}"));
        assert_eq!(place.line, Some(expected), "{mark}: {place:?}");
        let found = place.function.as_deref().unwrap_or_default();
        assert_eq!(found, function, "{mark}: {place:?}");
    }
}

fn compiled(directory: &Path, name: &str, source: &str, compiler: &str) -> Option<PathBuf> {
    let (path, program) = (directory.join(name), directory.join("program"));
    fs::write(&path, source).unwrap();
    let output = Command::new(compiler).arg("-g").arg(&path).arg("-o").arg(&program).output();
    match output {
        Ok(output) if output.status.success() => Some(program),
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => None,
    }
}

#[test]
fn lines_of_c_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(directory.path(), "store.c", C, "cc") else { return };
    let recording = record(&program, &[]);
    are_found(&recording, C, "/*", ["put", "put", "commit", "main"]);

    // Another program under the same name has other lines.
    fs::write(&program, "#!/bin/sh\n").unwrap();
    let mut symbols = Symbols::new(&recording.stacks);
    assert!(symbols.places().iter().flatten().next().is_none());
    assert_eq!(symbols.changed(), [program]);
}

#[test]
fn lines_of_rust_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(directory.path(), "store.rs", RUST, "rustc") else { return };
    are_found(&record(&program, &[]), RUST, "//", ["put", "put", "commit", "main"]);
}

#[test]
fn lines_of_python_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("store.py");
    fs::write(&script, PYTHON).unwrap();
    let mut versions = 0;
    for version in ["3.11", "3.12", "3.13"] {
        let Some(python) = interpreter(version) else { continue };
        versions += 1;
        let recording = record(&python, &[&script]);
        for ((mark, place), function) in
            places(&recording).into_iter().zip([Some("put"), Some("put"), Some("commit"), None])
        {
            let Some(place) = place else { panic!("{version}: {mark} has no place") };
            let expected = line(PYTHON, &format!("# {mark}"));
            assert_eq!((place.file.as_path(), place.line), (&*script, Some(expected)), "{version}");
            assert_eq!(place.function.as_deref(), function, "{version}");
        }
    }
    // Elsewhere there may be none.
    eprintln!("lines of {versions} versions of CPython were found");
}

/// A CPython of this version, if there is one. Wrappers that start another program are not it.
fn interpreter(version: &str) -> Option<PathBuf> {
    let installed = fs::read_dir("/root/.pyenv/versions").into_iter().flatten().flatten();
    let installed = installed
        .map(|entry| entry.path().join(format!("bin/python{version}")))
        .filter(|path| path.exists());
    let system = PathBuf::from(format!("/usr/bin/python{version}"));
    installed.chain([system].into_iter().filter(|path| path.exists())).next()
}

#[test]
fn stacks_are_recorded_only_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = compiled(directory.path(), "store.c", C, "cc") else { return };
    let root = tempfile::tempdir().unwrap();
    let recorded = retake_crash::record(&program).arg(root.path()).root(root.path()).run();
    assert!(recorded.unwrap().recording.stacks.is_empty());
}
