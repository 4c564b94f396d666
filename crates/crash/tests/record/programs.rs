//! Small programs for recordings, and short words for recorded entries.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use retake_crash::operation::{Action, DirEntry, Entry, Kind, Node, Recording};
use retake_crash::recorder::{RecordError, Recorded, Recorder, WorkloadOutcome};

/// A directory in memory, if possible.
pub(crate) fn directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

/// Compiles a C program; `body` is the content of `main`, which starts in the root.
pub(crate) fn compiled(body: &str, flags: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("program.c");
    let program = dir.path().join("program");
    let text = format!(
        "#define _GNU_SOURCE\n#include <fcntl.h>\n#include <stdio.h>\n#include <stdlib.h>\n\
         #include <string.h>\n#include <unistd.h>\n#include <errno.h>\n#include <pthread.h>\n\
         #include <sys/mman.h>\n#include <sys/stat.h>\n#include <sys/syscall.h>\n\
         #include <sys/wait.h>\n#include <sys/uio.h>\n#include <sys/sendfile.h>\n\
         #include <sys/xattr.h>\n#include <sys/ioctl.h>\n#include <sys/mount.h>\n\
         #define must(x) do {{ if ((long)(x) < 0) {{ perror(#x); exit(9); }} }} while (0)\n\
         {body}"
    );
    std::fs::write(&source, text).unwrap();
    let status = Command::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .args([&program, &source])
        .args(flags)
        .status()
        .unwrap();
    assert!(status.success(), "{}", source.display());
    (dir, program)
}

/// Records a C program in a directory.
pub(crate) fn c(root: &Path, body: &str) -> Result<Recorded, RecordError> {
    let (_keep, program) = compiled(&format!("int main(void) {{ {body}; return 0; }}"), &[]);
    here(retake_crash::record(program), root).run()
}

pub(crate) fn here(recorder: Recorder, root: &Path) -> Recorder {
    recorder.root(root).current_dir(root).output(std::io::sink())
}

pub(crate) fn shell(root: &Path, script: &str) -> Recorded {
    let recorded = here(retake_crash::record("sh").arg("-ec").arg(script), root).run().unwrap();
    assert_eq!(recorded.outcome, WorkloadOutcome::Exited(0));
    recorded
}

/// The entries as words; nodes are named by their first name.
pub(crate) fn words(recording: &Recording) -> Vec<String> {
    let mut names = std::collections::HashMap::new();
    names.insert(Node::ROOT, String::from("/"));
    for initial in &recording.initial {
        if let Some(dir_entry) = initial.dir_entries.first() {
            names.insert(initial.node, text(&dir_entry.name));
        }
    }
    let mut words = Vec::new();
    for entry in &recording.entries {
        let action = match entry {
            Entry::Label(label) => {
                words.push(format!("label {label}"));
                continue;
            }
            Entry::Acknowledgement(said) => {
                words.push(format!("ack {}", String::from_utf8_lossy(said)));
                continue;
            }
            Entry::Operation(operation) => &operation.action,
        };
        if let Action::Create { node, dir_entry, .. } = action {
            let name = dir_entry.as_ref().map_or_else(|| "unnamed".to_owned(), |at| text(&at.name));
            names.insert(*node, name);
        }
        let name = |node: &Node| names.get(node).cloned().unwrap_or_else(|| "?".into());
        let at = |dir_entry: &DirEntry| {
            let directory = name(&dir_entry.directory);
            let directory = if directory == "/" { String::new() } else { directory + "/" };
            format!("{directory}{}", text(&dir_entry.name))
        };
        words.push(match action {
            Action::Create { mode, kind, dir_entry, .. } => {
                let dir_entry = dir_entry.as_ref().map_or_else(|| "unnamed".to_owned(), at);
                match kind {
                    Kind::File => format!("create {dir_entry} {mode:o}"),
                    Kind::Directory => format!("mkdir {dir_entry} {mode:o}"),
                    Kind::Symlink { target } => format!("symlink {dir_entry} to {}", text(target)),
                }
            }
            Action::Write { node, offset, data, sync, mapped } => {
                let how = if *mapped { "store" } else { "write" };
                let data = String::from_utf8_lossy(data);
                let sync = match sync {
                    retake_crash::operation::WriteSync::None => "",
                    retake_crash::operation::WriteSync::Data => " dsync",
                    retake_crash::operation::WriteSync::Full => " sync",
                };
                format!("{how} {} {offset} {data}{sync}", name(node))
            }
            Action::Truncate { node, size } => format!("truncate {} {size}", name(node)),
            Action::Allocate { node, offset, length, keep_size } => {
                format!("allocate {} {offset}+{length} {keep_size}", name(node))
            }
            Action::Zero { node, offset, length, keep_size, hole } => {
                format!("zero {} {offset}+{length} {keep_size} {hole}", name(node))
            }
            Action::Link { node, dir_entry } => format!("link {} {}", name(node), at(dir_entry)),
            Action::Remove { node, dir_entry } => {
                format!("remove {} {}", name(node), at(dir_entry))
            }
            Action::Rename { node, from, to, replaced } => {
                let replaced = replaced
                    .as_ref()
                    .map_or_else(String::new, |node| format!(" over {}", name(node)));
                format!("rename {} {} to {}{replaced}", name(node), at(from), at(to))
            }
            Action::Exchange { first, second, .. } => {
                format!("exchange {} {}", name(first), name(second))
            }
            Action::Mode { node, mode } => format!("mode {} {mode:o}", name(node)),
            Action::Attribute { node, name: attribute, value } => {
                let value = value.as_ref().map(|value| String::from_utf8_lossy(value).into_owned());
                format!("attribute {} {} {value:?}", name(node), text(attribute))
            }
            Action::Sync { node, data_only: false } => format!("fsync {}", name(node)),
            Action::Sync { node, data_only: true } => format!("fdatasync {}", name(node)),
            Action::SyncPart { node, offset, length } => {
                format!("msync {} {offset}+{length}", name(node))
            }
            Action::SyncRange { node, offset, length } => {
                format!("syncrange {} {offset}+{length}", name(node))
            }
            Action::SyncAll => "sync".to_owned(),
            Action::Close { node } => format!("close {}", name(node)),
        });
    }
    words
}

fn text(name: &OsString) -> String {
    String::from_utf8_lossy(name.as_bytes()).into_owned()
}
