//! The tests under test: FIRST tests that pass, fail and misbehave, each started in a separate
//! process by the tests beside this file. Run directly most of them fail, as they should.

#![expect(clippy::exit, reason = "a workload that exits is one of the cases")]

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use first::{Env, crash_point};

/// A directory that outlives the runs.
pub(crate) fn scratch() -> PathBuf {
    std::env::var_os("SCRATCH").expect("started by the tests beside this file").into()
}

/// Appends a line to a file in the scratch directory and returns the number of lines.
pub(crate) fn note(file: &str, line: &str) -> usize {
    let path = scratch().join(file);
    let mut file = OpenOptions::new().create(true).append(true).open(&path).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
    fs::read_to_string(path).unwrap().lines().count()
}

fn step(env: &Env, label: &str) {
    fs::write(env.path(label), label).unwrap();
    crash_point(label);
}

fn steps(env: &Env) {
    ["a", "b", "c"].iter().for_each(|label| step(env, label));
}

fn jobs() -> usize {
    std::env::var("SCENARIO_JOBS").map_or(1, |jobs| jobs.parse().unwrap())
}

fn keeps_its_promise(env: &Env, crash: &first::CrashInfo) {
    for promised in crash.acks() {
        let text = fs::read_to_string(env.path(promised)).unwrap_or_default();
        assert_eq!(text, "text", "{promised} was promised");
    }
}

macro_rules! scenarios {
    ($($(#[$attribute:meta])* fn $name:ident() $body:block)*) => {
        $(#[test] #[ignore = "started by the tests beside it"] $(#[$attribute])* fn $name() $body)*
    };
}

scenarios! {
    fn passes() {
        crash_point("before the test");
        first::test().jobs(jobs()).run(steps).verify(|env, crash| {
            crash_point("in verify");
            let labels = ["a", "b", "c"];
            assert_eq!(crash.label(), labels[crash.point_id() - 1]);
            for (index, label) in labels.iter().enumerate() {
                assert_eq!(env.path(label).exists(), index < crash.point_id());
            }
            note("verified", "");
        }).execute();
        // The phases end in the test: only the orchestrator gets here, or a phase started by a person.
        note("after", "");
        crash_point("after the test");
    }

    fn fails_at_b() {
        first::test().seed(9).jobs(jobs()).run(|env| {
            eprintln!("the workload speaks");
            steps(env);
        }).verify(|env, _| {
            eprintln!("the check speaks");
            assert!(!env.path("b").exists() || env.path("c").exists(), "b without c");
        });
    }

    fn counts_its_runs() {
        first::test().run(|env| {
            note("runs", "");
            steps(env);
        }).verify(|_, _| {});
    }

    fn counts_the_runs_of_a_failure() {
        first::test().run(|env| {
            note("runs", "");
            steps(env);
        }).verify(|env, _| {
            assert!(!env.path("b").exists() || env.path("c").exists(), "b without c");
        });
    }

    fn fails_only_where_it_is_recorded() {
        first::test().run(|env| {
            let recorded = std::env::var_os("FIRST_RECORDING").is_some();
            fs::write(env.path("a"), if recorded { "bad" } else { "good" }).unwrap();
            crash_point("a");
        }).verify(|env, _| {
            assert_eq!(fs::read_to_string(env.path("a")).unwrap(), "good");
        });
    }

    fn promises() {
        first::test().run(|env| {
            step(env, "a");
            first::ack("a is there");
            step(env, "b");
            step(env, "c");
            first::ack("b and c are there");
        }).verify(|_, crash| {
            let promised = if crash.point_id() > 1 { &["a is there"][..] } else { &[] };
            assert_eq!(crash.acks(), promised);
        });
    }

    fn fails_its_promise() {
        first::test().run(|env| {
            first::ack("b");
            step(env, "a");
            step(env, "b");
        }).verify(|env, crash| {
            for promise in crash.acks() {
                assert!(env.path(promise).exists(), "{promise} was promised");
            }
        });
    }

    fn forgets_to_sync() {
        first::test().model(first::Model::Ext4).jobs(2).run(|env| {
            note("runs", "");
            eprintln!("the workload speaks");
            fs::write(env.path("new"), "text").unwrap();
            crash_point("written");
            fs::rename(env.path("new"), env.path("current")).unwrap();
            first::ack("current");
        }).verify(|env, crash| {
            eprintln!("the check speaks");
            keeps_its_promise(env, crash);
        });
    }

    fn needs_two_files_under_a_model() {
        first::test().model(first::Model::Ext4).run(steps).verify(|env, _| {
            assert!(!env.path("b").exists() || env.path("c").exists(), "b without c");
        });
    }

    fn needs_two_files_at_its_last_state() {
        first::test().model(first::Model::Ext4).run(|env| {
            fs::create_dir(env.path("a")).unwrap();
            first::ack("a");
        }).verify(|env, crash| {
            assert!(crash.acks().is_empty() || env.path("a").exists(), "a was promised");
        });
    }

    fn uses_io_uring() {
        first::test().run(|env| {
            // SAFETY: without memory for the result it only fails.
            unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, 0) };
            step(env, "a");
        }).verify(|_, _| {});
    }

    fn syncs() {
        let model = std::env::var("MODEL").unwrap().parse().unwrap();
        first::test().model(model).jobs(2).run(|env| {
            fs::write(env.path("new"), "text").unwrap();
            fs::File::open(env.path("new")).unwrap().sync_all().unwrap();
            fs::rename(env.path("new"), env.path("current")).unwrap();
            fs::File::open(env.path("")).unwrap().sync_all().unwrap();
            first::ack("current");
            crash_point("promised");
        }).verify(keeps_its_promise);
    }

    fn fails_in_its_workload_under_a_model() {
        first::test().model(first::Model::Ext4).run(|_| panic!("no disk")).verify(|_, _| {});
    }

    fn checks_wrongly() {
        first::test().model(first::Model::Posix).run(steps).verify(|_, _| panic!("never good"));
    }

    fn prefix() {
        first::test().run(steps).verify(|_, _| {});
    }

    fn prefix_of_another() {
        note("another", "ran");
    }

    fn panics_at_once() {
        first::test().run(|_| panic!("no disk")).verify(|_, _| {});
    }

    fn panics_later() {
        first::test().run(|env| {
            step(env, "a");
            panic!("no more disk");
        }).verify(|_, _| {});
    }

    fn has_no_points() {
        first::test().run(|_| {}).verify(|_, _| {});
    }

    fn changes_its_number_of_points() {
        first::test().run(|env| {
            let runs = note("runs", "");
            step(env, "a");
            if runs != 3 {
                step(env, "b");
            }
        }).verify(|_, _| {});
    }

    fn ends_earlier_at_last() {
        first::test().run(|env| {
            let runs = note("runs", "");
            step(env, "a");
            if runs < 4 {
                step(env, "b");
            }
        }).verify(|_, _| {});
    }

    fn changes_its_labels() {
        first::test().run(|env| {
            let runs = note("runs", "");
            step(env, if runs == 1 { "one" } else { "other" });
            step(env, "b");
        }).verify(|_, _| {});
    }

    fn forks() {
        first::test().run(|env| {
            step(env, "a");
            // SAFETY: the copy only reaches a crash point, which kills it.
            let pid = unsafe { libc::fork() };
            crash_point("in both");
            if pid > 0 {
                // SAFETY: waits for the copy made above.
                unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
            }
        }).verify(|_, _| {});
    }

    fn is_killed() {
        first::test().run(|env| {
            step(env, "a");
            // SAFETY: a signal to this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }).verify(|_, _| {});
    }

    fn eats_all_memory() {
        first::test().run(|env| {
            step(env, "a");
            fs::write(scratch().join("cgroup/cgroup.procs"), std::process::id().to_string()).unwrap();
            let mut all = Vec::new();
            loop {
                all.push(vec![1u8; 1 << 20]);
            }
        }).verify(|_, _| {});
    }

    fn hangs() {
        first::test().timeout(Duration::from_millis(700)).run(|env| {
            leave_processes();
            step(env, "a");
            loop {
                std::thread::park();
            }
        }).verify(|_, _| {});
    }

    fn exits() {
        first::test().run(|env| {
            step(env, "a");
            std::process::exit(0);
        }).verify(|_, _| {});
    }

    fn deletes_its_directory() {
        first::test().run(|env| {
            fs::remove_dir_all(env.path("")).unwrap();
            crash_point("gone");
        }).verify(|_, _| {});
    }

    fn verify_hangs() {
        first::test().timeout(Duration::from_millis(700)).run(steps).verify(|_, _| {
            leave_processes();
            loop {
                std::thread::park();
            }
        });
    }

    fn verify_deletes() {
        first::test().run(steps).verify(|env, _| fs::remove_dir_all(env.path("")).unwrap());
    }

    fn verify_aborts() {
        first::test().run(steps).verify(|_, _| std::process::abort());
    }

    fn verify_exits() {
        first::test().run(steps).verify(|_, _| std::process::exit(0));
    }

    #[should_panic(expected = "b without c")]
    fn should_panic() {
        first::test().run(steps).verify(|env, _| {
            assert!(!env.path("b").exists() || env.path("c").exists(), "b without c");
        });
    }

    fn leaves_processes() {
        first::test().run(|env| {
            leave_processes();
            steps(env);
        }).verify(|_, _| {
            // All processes of the workload died with it.
            assert_eq!(sleepers(), 0);
            leave_processes();
        });
    }

    fn leaves_processes_under_a_model() {
        first::test().model(first::Model::Ext4).run(|env| {
            steps(env);
            leave_processes();
        }).verify(|_, _| {});
    }

    fn waits_to_be_orphaned() {
        first::test().run(|_| {
            leave_processes();
            note("waiting", "");
            loop {
                std::thread::park();
            }
        }).verify(|_, _| {});
    }

    fn waits_before_its_test() {
        if std::env::var_os("FIRST_PHASE").is_some() {
            note("waiting", "");
            loop {
                std::thread::park();
            }
        }
        first::test().run(steps).verify(|_, _| {});
    }

    fn odd_label() {
        let label = "say \"hi\",\n\t'$HOME' \\ 🦀";
        first::test().run(|_| crash_point(label)).verify(move |_, crash| {
            assert_eq!(crash.label(), label);
            panic!("told");
        });
    }

    fn nul_label() {
        first::test().run(|_| crash_point("a\0b")).verify(|_, _| {});
    }

    fn escapes() {
        first::test().run(|env| {
            step(env, "a");
            fs::write(env.path("../out"), "").unwrap();
        }).verify(|_, _| {});
    }

    fn two_tests() {
        first::test().run(|env| step(env, "one")).verify(|env, crash| {
            assert_eq!(crash.label(), "one");
            note("order", &env.path("").display().to_string());
        });
        first::test().run(|env| {
            step(env, "two");
            step(env, "three");
        }).verify(|env, crash| {
            note("order", &env.path("").display().to_string());
            assert_ne!(crash.label(), "three", "the second fails");
        });
    }

    fn asynchronous() {
        crate::executor::block_on(async {
            first::test().run_async(async |env| {
                step(&env, "a");
                crate::executor::yield_once().await;
                step(&env, "b");
            }).verify_async(async |env, crash| {
                crate::executor::yield_once().await;
                assert_eq!(env.path("b").exists(), crash.point_id() == 2);
                assert!(std::env::var_os("FAIL_AT_B").is_none() || crash.label() != "b", "at b");
            }).await.execute();
        });
    }

    fn asynchronous_elsewhere() {
        std::thread::spawn(|| crate::executor::block_on(async {
            first::test()
                .name("scenario::asynchronous_elsewhere")
                .run_async(async |env: Env| step(&env, "a"))
                .verify_async(async |_, _| {})
                .await
        })).join().unwrap();
    }

    fn asynchronous_panic() {
        crate::executor::block_on(async {
            first::test().run_async(async |env| {
                step(&env, "a");
                crate::executor::yield_once().await;
                panic!("after the yield");
            }).verify_async(async |_, _| {}).await
        });
    }

    fn forgotten_future() {
        drop(first::test().run_async(async |_| {}).verify_async(async |_, _| {}));
    }

    fn nameless() {
        std::thread::spawn(|| first::test().run(steps).verify(|_, _| {})).join().unwrap_or_else(
            |panic| std::panic::resume_unwind(panic),
        );
    }

    fn misnamed() {
        first::test().name("no_such_test").run(steps).verify(|_, _| {});
    }

    fn threads() {
        first::test().run(|env| {
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    scope.spawn(move || (0..3).for_each(|n| step(env, &format!("{thread}.{n}"))));
                }
            });
        }).verify(|_, crash| assert!(crash.point_id() <= 12));
    }

    fn same_states() {
        first::test().jobs(jobs()).run(|env| {
            step(env, "a");
            crash_point("nothing new");
            step(env, "b");
            fs::remove_file(env.path("b")).unwrap();
            crash_point("as before");
        }).verify(|_, crash| {
            if std::env::var_os("LOOK").is_some() {
                assert!(crash.point_id() > 0);
            }
            note("verified", "");
        });
    }

    fn limited() {
        first::test().max_crashes(2).run(steps).verify(|_, _| {});
    }

    fn filtered() {
        first::test().label_filter("[bc]").run(steps).verify(|_, crash| {
            assert_eq!(crash.label(), ["b", "c"][crash.point_id() - 1]);
        });
    }

    fn filtered_out() {
        first::test().label_filter("x*").run(steps).verify(|_, _| {});
    }

    fn no_jobs() {
        first::test().jobs(0).run(steps).verify(|_, _| {});
    }

    fn seeded() {
        first::test().seed(5).run(|env| {
            note("seeds", &env.seed().to_string());
            step(env, "a");
        }).verify(|env, crash| {
            assert_eq!(env.seed(), crash.seed());
            note("seeds", &env.seed().to_string());
        });
    }

    fn fails_twice() {
        first::test().jobs(jobs()).run(steps).verify(|env, crash| {
            assert!(crash.label() == "b", "not b");
            drop(env.path(""));
        });
    }

    fn locks_its_directory() {
        use std::os::unix::fs::PermissionsExt;
        first::test().run(|env| {
            fs::create_dir(env.path("locked")).unwrap();
            step(env, "locked/a");
            fs::set_permissions(env.path("locked"), fs::Permissions::from_mode(0o500)).unwrap();
            crash_point("locked");
        }).verify(|_, _| {});
    }

    fn hands_its_variables_on() {
        first::test().run(|env| {
            step(env, "a");
            let inner = Command::new(std::env::current_exe().unwrap())
                .args(["scenario::hands_its_variables_on", "--exact", "--include-ignored"])
                .args(["--nocapture"])
                .output()
                .unwrap();
            panic!("{}", String::from_utf8_lossy(&inner.stderr));
        }).verify(|_, _| {});
    }
}

/// One that stays in the group, one that leaves the session, and a child of that one.
#[expect(clippy::zombie_processes, reason = "left running is what they are for")]
fn leave_processes() {
    for line in ["exec sleep 7777", "exec setsid sh -c 'sleep 7777 & exec sleep 7777'"] {
        Command::new("sh")
            .args(["-c", line])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
    }
    crate::stage::eventually("the processes run", || sleepers() == 3);
}

/// The processes of this scenario, which share its scratch directory.
fn sleepers() -> usize {
    let mark = format!("SCRATCH={}", scratch().display()).into_bytes();
    let ours = |pid: &str| {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        read("comm").starts_with(b"sleep") && read("environ").split(|b| *b == 0).any(|e| e == mark)
    };
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|pid| pid.parse::<u32>().is_ok() && ours(pid))
        .count()
}

/// Several in one binary at once.
mod at_once {
    use super::steps;

    scenarios! {
        fn one() {
            first::test().run(steps).verify(|_, _| {});
        }

        fn two() {
            first::test().jobs(2).run(steps).verify(|_, crash| assert!(crash.point_id() > 0));
        }

        fn three() {
            first::test().run(steps).verify(|env, _| assert!(!env.path("c").exists()));
        }
    }
}
