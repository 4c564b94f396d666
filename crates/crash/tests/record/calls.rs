use crate::programs::{c, directory, here, shell, words};
use retake_crash::recorder::{RecordError, WorkloadOutcome};

/// The log of a C program in an empty directory, as words.
fn logged(body: &str) -> Vec<String> {
    let root = directory();
    let recorded = c(root.path(), &format!("umask(022); {body}")).unwrap();
    assert_eq!(recorded.outcome, WorkloadOutcome::Exited(0));
    words(&recorded.recording)
}

#[test]
fn a_file_is_created_written_synced_and_renamed() {
    let log = logged(
        r#"int f = open("a.tmp", O_CREAT|O_WRONLY|O_TRUNC, 0666); must(f);
        must(write(f, "hello ", 6)); must(write(f, "world", 5)); must(pwrite(f, "W", 1, 6));
        must(fsync(f)); must(close(f)); must(rename("a.tmp", "a"));
        int d = open(".", O_RDONLY|O_DIRECTORY); must(fsync(d));
        must(truncate("a", 3)); must(chmod("a", 0600));"#,
    );
    assert_eq!(
        log,
        [
            "create a.tmp 644",
            "write a.tmp 0 hello ",
            "write a.tmp 6 world",
            "write a.tmp 6 W",
            "fsync a.tmp",
            "close a.tmp",
            "rename a.tmp a.tmp to a",
            "fsync /",
            "truncate a.tmp 3",
            "mode a.tmp 600",
        ]
    );
}

#[test]
fn every_way_to_write_lands_where_it_landed() {
    let log = logged(
        r#"int f = open("a", O_CREAT|O_RDWR|O_APPEND, 0600); must(f);
        must(write(f, "one", 3)); must(pwrite(f, "two", 3, 0));
        struct iovec v[2] = {{"th", 2}, {"ree", 3}};
        must(writev(f, v, 2)); must(pwritev(f, v, 2, 0)); 
        int g = open("b", O_CREAT|O_RDWR|O_DSYNC, 0600); must(g);
        must(pwritev2(g, v, 2, 4, 0)); must(pwritev2(g, v, 1, -1, RWF_SYNC));
        must(pwritev2(g, v, 1, 0, RWF_APPEND)); must(lseek(g, 1, SEEK_SET)); must(write(g, "x", 1));
        int h = open("c", O_CREAT|O_RDWR|O_SYNC, 0600); must(write(h, "s", 1));"#,
    );
    assert_eq!(
        log,
        [
            "create a 600",
            "write a 0 one",
            "write a 3 two",
            "write a 6 three",
            "write a 11 three",
            "create b 600",
            "write b 4 three dsync",
            "write b 0 th sync",
            "write b 9 th dsync",
            "write b 1 x dsync",
            "create c 600",
            "write c 0 s sync",
            "close a",
            "close b",
            "close c",
        ]
    );
}

#[test]
fn a_descriptor_is_tracked_when_its_number_is_reused() {
    // Each is written to before and after its number refers to another file.
    let log = logged(
        r#"int a = open("a", O_CREAT|O_RDWR, 0600), b = open("b", O_CREAT|O_RDWR, 0600);
        must(pwrite(a, "1", 1, 0)); must(dup2(b, a)); must(pwrite(a, "2", 1, 0));
        int c = open("c", O_CREAT|O_RDWR, 0600); must(dup3(c, a, O_CLOEXEC)); must(pwrite(a, "3", 1, 0));
        must(close(a)); int d = open("d", O_CREAT|O_RDWR, 0600); if (d != a) exit(9);
        must(pwrite(d, "4", 1, 0)); must(fcntl(d, F_SETFL, O_APPEND)); must(pwrite(d, "5", 1, 0));
        must(close_range(d, d, 0)); int e = dup(b); if (e != d) exit(9); must(pwrite(e, "6", 1, 7));
        must(fdatasync(e));
        pid_t child = fork(); must(child);
        if (!child) { must(dup2(c, b)); must(pwrite(b, "7", 1, 1)); _exit(0); }
        must(waitpid(child, 0, 0)); must(pwrite(b, "8", 1, 9)); must(pwrite(b, "9", 1, 10));"#,
    );
    let written: Vec<&str> = log
        .iter()
        .map(String::as_str)
        .filter(|line| line.starts_with("write") || line.starts_with("fdatasync"))
        .collect();
    assert_eq!(
        written,
        [
            "write a 0 1",
            "write b 0 2",
            "write c 0 3",
            "write d 0 4",
            "write d 1 5",
            "write b 7 6",
            "fdatasync b",
            "write c 1 7",
            "write b 9 8",
            "write b 10 9",
        ]
    );
}

#[test]
fn space_is_made_and_taken_back() {
    let log = logged(
        r#"int f = open("a", O_CREAT|O_RDWR, 0600); must(fallocate(f, 0, 0, 8192));
        must(fallocate(f, FALLOC_FL_KEEP_SIZE, 8192, 4096)); must(pwrite(f, "abc", 3, 0));
        must(fallocate(f, FALLOC_FL_PUNCH_HOLE|FALLOC_FL_KEEP_SIZE, 0, 4096));
        must(ftruncate(f, 10)); int g = open("a", O_WRONLY|O_TRUNC); must(g);
        must(sync_file_range(f, 0, 10, SYNC_FILE_RANGE_WRITE)); must(fdatasync(f)); must(syncfs(f));
        sync(); _exit(0)"#,
    );
    assert_eq!(
        log,
        [
            "create a 600",
            "allocate a 0+8192 false",
            "allocate a 8192+4096 true",
            "write a 0 abc",
            "zero a 0+4096 true true",
            "truncate a 10",
            "truncate a 0",
            "syncrange a 0+10",
            "fdatasync a",
            "sync",
            "sync",
            "close a",
        ]
    );
}

#[test]
fn the_kernel_copies_too() {
    let log = logged(
        r#"int f = open("a", O_CREAT|O_RDWR, 0600); must(write(f, "0123456789", 10));
        int g = open("b", O_CREAT|O_RDWR, 0600); off_t in = 2, out = 3;
        must(copy_file_range(f, &in, g, &out, 4, 0)); in = 0; must(sendfile(g, f, &in, 2));
        int p[2]; must(pipe(p)); must(write(p[1], "pipe", 4)); out = 20;
        must(splice(p[0], 0, g, &out, 4, 0)); must(fsync(g)); _exit(0)"#,
    );
    assert_eq!(
        log,
        [
            "create a 600",
            "write a 0 0123456789",
            "create b 600",
            "write b 3 2345",
            "write b 0 01",
            "write b 20 pipe",
            "fsync b",
            "close a",
            "close b",
        ]
    );
}

#[test]
fn calls_that_create_and_remove_names_are_recorded() {
    let log = logged(
        r#"must(mkdir("d", 0700)); must(mkdirat(AT_FDCWD, "e", 0755)); must(mknod("n", S_IFREG|0640, 0));
        must(link("n", "d/m")); must(symlink("nowhere", "s")); must(linkat(AT_FDCWD, "s", AT_FDCWD, "s2", 0));
        int d = open("d", O_DIRECTORY); must(renameat(d, "m", AT_FDCWD, "e/k"));
        must(rename("e/k", "n")); must(unlink("e/k")); must(close(creat("o", 0600)));
        must(renameat2(AT_FDCWD, "n", AT_FDCWD, "o", RENAME_EXCHANGE)); must(rename("n", "o"));
        must(rename("e", "d/f")); must(unlinkat(d, "f", AT_REMOVEDIR)); must(rmdir("d")); must(unlink("s"));
        if (rename("gone", "x") == 0 || mkdir("s2", 0700) == 0) exit(1);"#,
    );
    assert_eq!(
        log,
        [
            "mkdir d 700",
            "mkdir e 755",
            "create n 640",
            "link n d/m",
            "symlink s to nowhere",
            "link s s2",
            "rename n d/m to e/k",
            // Two names of one file: nothing happened.
            "remove n e/k",
            "create o 600",
            "close o",
            "exchange n o",
            "rename o n to o over n",
            "rename e e to d/f",
            "remove e d/f",
            "remove d d",
            "remove s s",
        ]
    );
}

#[test]
fn a_file_without_a_name_gets_one() {
    let log = logged(
        r#"int f = open(".", O_TMPFILE|O_RDWR, 0600); must(f); must(write(f, "x", 1));
        char p[64]; sprintf(p, "/proc/self/fd/%d", f);
        must(linkat(AT_FDCWD, p, AT_FDCWD, "a", AT_SYMLINK_FOLLOW)); must(fsync(f));
        int g = open(".", O_TMPFILE|O_RDWR, 0600); must(linkat(g, "", AT_FDCWD, "b", AT_EMPTY_PATH));
        _exit(0)"#,
    );
    assert_eq!(
        log,
        [
            "create unnamed 600",
            "write unnamed 0 x",
            "link unnamed a",
            "fsync unnamed",
            "create unnamed 600",
            "link unnamed b",
            "close unnamed",
            "close unnamed",
        ]
    );
}

#[test]
fn operations_through_symbolic_links_apply_to_the_target() {
    let log = logged(
        r#"must(mkdir("d", 0700)); must(symlink("d/new", "s")); int f = open("s", O_CREAT|O_WRONLY, 0600);
        must(write(f, "x", 1)); must(chdir("d")); must(close(creat("../up", 0600)));
        must(truncate("../s", 0)); must(chmod("../s", 0640));
        if (open("../s", O_CREAT|O_EXCL|O_WRONLY, 0600) >= 0) exit(1); _exit(0)"#,
    );
    assert_eq!(
        log,
        [
            "mkdir d 700",
            "symlink s to d/new",
            "create d/new 600",
            "write new 0 x",
            "create up 600",
            "close up",
            "truncate new 0",
            "mode new 640",
            "close new",
        ]
    );
}

#[test]
fn attributes_are_set_and_removed() {
    let log = logged(
        r#"int f = creat("a", 0600); if (fsetxattr(f, "user.k", "v", 1, 0) == 0) {
        must(setxattr("a", "user.j", "w", 1, 0)); must(removexattr("a", "user.k")); }
        else if (errno != ENOTSUP) exit(1); _exit(0)"#,
    );
    if log.len() > 2 {
        assert_eq!(
            log[1..4],
            [
                "attribute a user.k Some(\"v\")",
                "attribute a user.j Some(\"w\")",
                "attribute a user.k None"
            ]
        );
    }
}

#[test]
fn tools_that_set_a_mode_as_an_access_list_are_recorded() {
    let root = directory();
    let script = "umask 077; echo hi > f; chmod 640 f; cp -p f g; sed -i s/hi/ho/ f; cp -a g h";
    let log = words(&shell(root.path(), script).recording);
    assert!(log.iter().any(|line| line == "mode g 640"), "{log:#?}");
}

#[test]
fn stores_into_a_mapping_come_before_the_sync() {
    let log = logged(
        r#"int f = open("a", O_CREAT|O_RDWR, 0600); must(ftruncate(f, 8192));
        char *m = mmap(0, 8192, PROT_READ|PROT_WRITE, MAP_SHARED, f, 0); must(close(f));
        memcpy(m, "first", 5); must(msync(m, 8192, MS_SYNC)); memcpy(m + 4096, "second", 6);
        char *r; must(close(creat("b", 0600))); m[0] = 'F'; munmap(m, 8192);
        f = open("a", O_RDWR); r = mmap(0, 8192, PROT_READ, MAP_SHARED, f, 0);
        must(mprotect(r, 4096, PROT_READ|PROT_WRITE)); r[1] = 'I'; fsync(f); r[2] = 'R'; _exit(0)"#,
    );
    assert_eq!(
        log,
        [
            "create a 600",
            "truncate a 8192",
            "close a",
            "store a 0 first",
            "fdatasync a",
            "store a 4096 second",
            "create b 600",
            "close b",
            "store a 0 F",
            "store a 1 I",
            "fsync a",
            "close a",
            "store a 2 R",
        ]
    );
}

#[test]
fn msync_of_a_part_of_a_mapping_syncs_only_that_part() {
    let log = logged(
        r#"int f = open("a", O_CREAT|O_RDWR, 0600); must(ftruncate(f, 20000));
        char *m = mmap(0, 8192, PROT_READ|PROT_WRITE, MAP_SHARED, f, 4096);
        m[0] = '1'; m[4096] = '2'; must(msync(m + 4096, 1, MS_SYNC)); must(msync(m, 8192, MS_SYNC));
        must(ftruncate(f, 4096)); m = mmap(0, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, f, 0);
        m[9] = '3'; must(msync(m, 4096, MS_SYNC)); _exit(0)"#,
    );
    assert_eq!(
        log,
        [
            "create a 600",
            "truncate a 20000",
            "store a 4096 1",
            "store a 8192 2",
            "msync a 8192+4096",
            "msync a 4096+8192",
            "truncate a 4096",
            "store a 9 3",
            "fdatasync a",
            "close a",
        ]
    );
}

#[test]
fn processes_and_threads_are_followed() {
    let root = directory();
    let recorded = shell(
        root.path(),
        "umask 022; echo one > a; (echo two > b; mkdir d); cat a b > d/c; mv d/c e; ln -s e f; rm a",
    );
    let log = words(&recorded.recording);
    for line in ["write a 0 one\n", "write b 0 two\n", "rename c d/c to e", "remove a a"] {
        assert!(log.iter().any(|logged| logged == line), "{line} in {log:?}");
    }
    assert_eq!(std::fs::read_to_string(root.path().join("f")).unwrap(), "one\ntwo\n");
}

#[test]
fn lines_are_acknowledgements_in_their_place() {
    let log = logged(
        r#"int f = creat("a", 0600); must(write(1, "created\nhal", 11)); must(write(f, "x", 1));
        must(write(1, "f\n", 2)); must(fsync(f)); must(write(1, "rest", 4)); _exit(0)"#,
    );
    assert_eq!(
        log,
        [
            "create a 600",
            "ack created",
            "write a 0 x",
            "ack half",
            "fsync a",
            "close a",
            "ack rest"
        ]
    );
}

#[test]
fn unsupported_system_calls_end_the_recording_by_name() {
    let refused = [
        ("syscall(SYS_io_uring_setup, 4, 0)", "io_uring_setup"),
        ("syscall(SYS_io_setup, 4, 0)", "io_setup"),
        (
            "int f = creat(\"a\", 0600); fallocate(f, FALLOC_FL_COLLAPSE_RANGE, 0, 4096)",
            "fallocate",
        ),
        ("mkdir(\"d\", 0700); chroot(\"d\")", "chroot"),
    ];
    for (body, call) in refused {
        let root = directory();
        match c(root.path(), body) {
            Err(RecordError::Refused { call: named, .. }) => {
                assert!(named.contains(call), "{named}");
            }
            // Only root may.
            Ok(_) if call == "chroot" => {}
            other => panic!("{call}: {other:?}"),
        }
    }
}

#[test]
fn a_foreign_hand_is_noticed() {
    let root = directory();
    let outside = root.path().to_owned();
    // This process, which is not recorded, reads the workload's output.
    struct Meddler(std::path::PathBuf);
    impl std::io::Write for Meddler {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            std::fs::write(self.0.join("foreign"), "x")?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let script = "echo go; until test -e foreign; do :; done";
    let recorder = here(retake_crash::record("sh").arg("-c").arg(script), root.path());
    let error = recorder.output(Meddler(outside)).run().unwrap_err();
    assert!(error.to_string().contains("foreign is there and was never made"), "{error}");
}
