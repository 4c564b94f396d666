//! The rules of each profile, one test each, named after the rule. `docs/design/crash-models.md`
//! gives their sources.

use std::collections::BTreeSet;

use crate::model::profile::Model;
use crate::model::test_script::TestScript;

fn set(states: &[&str]) -> BTreeSet<String> {
    states.iter().map(|state| (*state).to_owned()).collect()
}

#[track_caller]
pub(super) fn exactly(model: Model, script: &TestScript, states: &[&str]) {
    assert_eq!(script.states(model), set(states));
}

#[track_caller]
fn some(model: Model, script: &TestScript, state: &str) {
    let states = script.states(model);
    assert!(states.contains(state), "{state:?} is not in {states:?}");
}

#[track_caller]
fn never(model: Model, script: &TestScript, state: &str) {
    let states = script.states(model);
    assert!(!states.contains(state), "{state:?} is in {states:?}");
}

/// A page of one letter.
pub(super) fn page(letter: char) -> String {
    letter.to_string().repeat(4096)
}

mod kill {
    use super::*;

    #[test]
    fn a_killed_process_loses_nothing() {
        let script = TestScript::default().create("a").write("a", 0, "x").rename("a", "b");
        exactly(Model::Kill, &script, &["b=x"]);
    }
}

mod posix {
    use super::*;
    const POSIX: Model = Model::Posix;

    #[test]
    fn any_subset_of_unsynced_writes_may_be_lost() {
        let script = TestScript::with(&[("a", "old"), ("b", "old")])
            .write("a", 0, "new")
            .write("b", 0, "new");
        exactly(POSIX, &script, &["a=old b=old", "a=new b=old", "a=old b=new", "a=new b=new"]);
    }

    #[test]
    fn size_and_bytes_are_separate() {
        let script = TestScript::with(&[("a", "x")]).write("a", 1, "yz");
        exactly(POSIX, &script, &["a=x", "a=x00", "a=xyz"]);
    }

    #[test]
    fn fsync_of_a_file_does_not_make_its_name_durable() {
        let script = TestScript::default().create("a").write("a", 0, "x").fsync("a");
        exactly(POSIX, &script, &["", "a=x"]);
    }

    #[test]
    fn fsync_of_the_directory_does() {
        let script = TestScript::default().create("a").write("a", 0, "x").fsync("a").fsync(".");
        exactly(POSIX, &script, &["a=x"]);
    }

    #[test]
    fn fdatasync_of_the_directory_does_too() {
        let script = TestScript::default().create("a").write("a", 0, "x").fsync("a").fdatasync(".");
        exactly(POSIX, &script, &["a=x"]);
    }

    #[test]
    fn fsync_of_the_directory_does_not_make_bytes_durable() {
        let script = TestScript::default().create("a").write("a", 0, "x").fsync(".");
        exactly(POSIX, &script, &["a=", "a=0", "a=x"]);
    }

    #[test]
    fn fdatasync_keeps_the_size() {
        let script = TestScript::with(&[("a", "")]).write("a", 0, "x").fdatasync("a");
        exactly(POSIX, &script, &["a=x"]);
    }

    #[test]
    fn a_rename_is_atomic() {
        let script = TestScript::with(&[("a", "old"), ("t", "new")]).rename("t", "a");
        exactly(POSIX, &script, &["a=old t=new", "a=new"]);
    }

    #[test]
    fn a_rename_is_durable_by_fsync_of_the_target_directory() {
        let script = TestScript::with(&[("a", "old"), ("t", "new")]).rename("t", "a").fsync(".");
        exactly(POSIX, &script, &["a=new"]);
    }

    #[test]
    fn a_file_moved_between_directories_may_have_both_names_until_both_are_synced() {
        let script = TestScript::with(&[]).with_directory("d").with_directory("e");
        let script = script.create("d/f").fsync("d").rename("d/f", "e/f");
        exactly(POSIX, &script.clone().fsync("d"), &["d/ d/f= e/", "d/ e/ e/f="]);
        let arrived = script.fsync("e");
        exactly(POSIX, &arrived, &["d/ d/f= e/ e/f=", "d/ e/ e/f="]);
        exactly(POSIX, &arrived.clone().fsync("d"), &["d/ e/ e/f="]);
        // The new name can be used again although the removal of the old one is not durable.
        let back = TestScript::with(&[("f", "x")]).with_directory("d");
        let back = back.rename("f", "d/f").rename("d/f", "f").fsync(".");
        exactly(POSIX, &back, &["d/ d/f=x f=x", "d/ f=x"]);
        let again = arrived.create("e/t").rename("e/t", "e/f").fsync("e");
        exactly(POSIX, &again, &["d/ d/f= e/ e/f=", "d/ e/ e/f="]);
    }

    #[test]
    fn zeros_that_make_a_file_longer_may_come_without_the_size_and_the_size_without_them() {
        let script = TestScript::with(&[("a", "xx")]).zero("a", 1, 3, false);
        exactly(POSIX, &script, &["a=xx", "a=x0", "a=xx00", "a=x000"]);
        exactly(Model::Ext4DataJournal, &script, &["a=xx", "a=xx00", "a=x000"]);
    }

    #[test]
    fn a_directory_moves_as_a_whole() {
        let script = TestScript::with(&[]).with_directory("d").with_directory("e");
        let script = script.mkdir("d/s").fsync("d").rename("d/s", "e/s").fsync("e");
        exactly(POSIX, &script, &["d/ e/ e/s/"]);
        exactly(Model::Btrfs, &script, &["d/ e/ e/s/"]);
    }

    #[test]
    fn a_new_directory_needs_its_parent_synced() {
        let script = TestScript::default().mkdir("d").create("d/f").fsync("d");
        exactly(POSIX, &script, &["", "d/ d/f="]);
    }

    #[test]
    fn operations_on_one_name_keep_their_order() {
        let script =
            TestScript::with(&[("a", "1")]).rename("a", "b").create("a").write("a", 0, "2");
        // The new `a` never exists while the old one, which had to be removed first, is lost.
        never(POSIX, &script, "a=2");
        some(POSIX, &script, "a=1");
        some(POSIX, &script, "a=2 b=1");
    }

    #[test]
    fn hard_links_share_one_file() {
        let script =
            TestScript::with(&[("a", "old")]).link("a", "b").fsync(".").write("a", 0, "new");
        exactly(POSIX, &script, &["a=old b=old", "a=new b=new"]);
        exactly(POSIX, &script.fsync("b"), &["a=new b=new"]);
    }

    #[test]
    fn sync_file_range_is_no_barrier() {
        let script = TestScript::with(&[("a", "old")]).write("a", 0, "new").sync_range("a");
        exactly(POSIX, &script, &["a=old", "a=new"]);
    }

    #[test]
    fn a_synchronous_write_makes_only_its_own_range_durable() {
        let script =
            TestScript::with(&[("a", "....")]).write("a", 0, "xxx").write_dsync("a", 1, "y");
        // Nor may the earlier write overwrite it.
        exactly(POSIX, &script, &["a=.y..", "a=xyx."]);
    }

    #[test]
    fn a_truncation_that_is_durable_does_not_let_older_bytes_back() {
        let script = TestScript::with(&[("a", "")])
            .write("a", 0, "xxxx")
            .truncate("a", 1)
            .write_dsync("a", 1, "y");
        exactly(POSIX, &script, &["a=0y", "a=xy"]);
    }

    #[test]
    fn an_unlinked_open_file_is_nowhere() {
        let script = TestScript::with(&[("a", "x")]).remove("a").fsync(".").write("open a", 0, "y");
        exactly(POSIX, &script, &[""]);
    }
}

mod ext4 {
    use super::*;
    const EXT4: Model = Model::Ext4;
    const LOCK: Model = Model::Ext4DioreadLock;
    const NO_DELAY: Model = Model::Ext4NoDelayedAllocation;
    const JOURNAL: Model = Model::Ext4DataJournal;

    #[test]
    fn fdatasync_of_a_directory_commits_like_fsync() {
        let script = TestScript::with(&[("a", "x")]).remove("a").fdatasync(".");
        exactly(EXT4, &script, &[""]);
    }

    #[test]
    fn names_survive_in_the_order_of_the_journal() {
        let script = TestScript::default().create("a").mkdir("d").create("d/b").remove("a");
        exactly(EXT4, &script, &["", "a=", "a= d/", "a= d/ d/b=", "d/ d/b="]);
    }

    #[test]
    fn a_new_block_and_its_size_may_come_without_the_bytes() {
        let script = TestScript::default().create("a").write("a", 0, "x");
        exactly(EXT4, &script, &["", "a=", "a=0", "a=x"]);
        // Never `a=0` with these mount options: the commit waits for the bytes.
        for model in [LOCK, NO_DELAY, JOURNAL] {
            exactly(model, &script, &["", "a=", "a=x"]);
        }
        let text = "x".repeat(20_000);
        let script = TestScript::with(&[("a", "")]).write("a", 0, &text);
        let sizes_and_bytes = script.sizes_and_bytes(EXT4, "a", [0, 19_999]);
        assert!(sizes_and_bytes.contains(&(20_000, [0, 0])), "{sizes_and_bytes:?}");
    }

    #[test]
    fn growth_in_a_new_block_may_come_without_any_bytes() {
        let script = TestScript::with(&[("a", "")]).write("a", 0, "x").write("a", 1, "y");
        exactly(EXT4, &script, &["a=", "a=0", "a=00", "a=x", "a=x0", "a=xy"]);
        exactly(LOCK, &script, &["a=", "a=x", "a=x0", "a=xy"]);
    }

    #[test]
    fn without_delayed_allocation_new_blocks_are_in_the_order_of_the_journal() {
        let script = TestScript::default().create("t").write("t", 0, "x").rename("t", "a");
        exactly(NO_DELAY, &script, &["", "t=", "t=x", "a=x"]);
        let overwritten = TestScript::with(&[("a", "old")]).write("a", 0, "new").create("b");
        exactly(NO_DELAY, &overwritten, &["a=old", "a=new", "a=old b=", "a=new b="]);
    }

    #[test]
    fn bytes_in_the_journal_keep_their_order() {
        let script = TestScript::with(&[("a", "old"), ("b", "")]).write("a", 0, "new");
        let script = script.write("b", 0, "x").create("c");
        exactly(JOURNAL, &script, &["a=old b=", "a=new b=", "a=new b=x", "a=new b=x c="]);
        exactly(JOURNAL, &script.fsync("b"), &["a=new b=x", "a=new b=x c="]);
        let text = page('.');
        let stored = TestScript::with(&[("a", text.as_str()), ("b", "")]).map("a", 0, "x");
        let stored = stored.create("c");
        let states = stored.sizes_and_bytes(JOURNAL, "a", [0]);
        assert_eq!(states, BTreeSet::from([(4096, *b"."), (4096, *b"x")]));
    }

    #[test]
    fn allocation_is_delayed_past_later_names() {
        let script = TestScript::default().create("t").write("t", 0, "x").rename("t", "a");
        // The zero-length file: a rename to a new name flushes nothing.
        exactly(EXT4, &script, &["", "t=", "t=0", "t=x", "a=", "a=0", "a=x"]);
        exactly(LOCK, &script, &["", "t=", "t=x", "a=", "a=x"]);
    }

    #[test]
    fn new_blocks_come_after_the_names_before_them() {
        let script = TestScript::with(&[("a", "")]).create("b").write("a", 0, "x");
        never(EXT4, &script, "a=x");
    }

    #[test]
    fn replace_via_rename_allocates_first_and_does_not_wait_for_the_bytes() {
        let script =
            TestScript::with(&[("a", "old")]).create("t").write("t", 0, "new").rename("t", "a");
        let old = ["a=old", "a=old t=", "a=old t=new"];
        exactly(EXT4, &script, &[&old[..], &["a=old t=000", "a=000", "a=new"]].concat());
        exactly(LOCK, &script, &[&old[..], &["a=new"]].concat());
    }

    #[test]
    fn replace_via_rename_does_not_flush_blocks_that_exist() {
        let script =
            TestScript::with(&[("a", "old"), ("t", "1")]).write("t", 0, "2").rename("t", "a");
        some(EXT4, &script, "a=1");
    }

    #[test]
    fn truncate_and_rewrite_is_flushed_at_close() {
        let script = TestScript::with(&[("a", "old")]).truncate("a", 0).write("a", 0, "new");
        exactly(EXT4, &script, &["a=old", "a=", "a=000", "a=new"]);
        exactly(LOCK, &script, &["a=old", "a=", "a=new"]);
        let script = script.close("a").create("later");
        let zeros = ["a=old", "a=", "a=000", "a=new", "a=000 later=", "a=new later="];
        exactly(EXT4, &script, &zeros);
        exactly(LOCK, &script, &["a=old", "a=", "a=new", "a=new later="]);
    }

    #[test]
    fn bytes_in_place_need_no_journal() {
        let script = TestScript::with(&[("a", "old")]).create("b").write("a", 0, "new");
        exactly(EXT4, &script, &["a=old", "a=new", "a=old b=", "a=new b="]);
    }

    #[test]
    fn growth_inside_a_block_is_in_the_journal_before_its_bytes() {
        let script = TestScript::with(&[("a", "x")]).write("a", 1, "y").create("b");
        exactly(EXT4, &script, &["a=x", "a=x0", "a=xy", "a=x0 b=", "a=xy b="]);
    }

    #[test]
    fn a_page_goes_to_disk_whole() {
        let script = TestScript::with(&[("a", "....")]).write("a", 0, "x").write("a", 3, "y");
        exactly(EXT4, &script, &["a=....", "a=x...", "a=x..y"]);
    }

    #[test]
    fn pages_go_to_disk_in_any_order() {
        let text = page('.') + &page('.');
        let script =
            TestScript::with(&[("a", text.as_str())]).write("a", 0, "x").write("a", 4096, "y");
        let sizes_and_bytes = script.sizes_and_bytes(EXT4, "a", [0, 4096]);
        assert!(sizes_and_bytes.contains(&(8192, *b".y")));
    }

    #[test]
    fn fsync_of_a_new_file_commits_the_names_before_it() {
        let script = TestScript::default().create("b").create("a").write("a", 0, "x").fsync("a");
        exactly(EXT4, &script, &["a=x b="]);
    }

    #[test]
    fn fsync_commits_the_names_before_the_bytes_but_not_those_after() {
        // Written back and committed by a timer before `b` was created, the file is clean.
        let script =
            TestScript::with(&[("a", "")]).create("c").write("a", 0, "x").create("b").fsync("a");
        exactly(EXT4, &script, &["a=x c=", "a=x b= c="]);
    }

    #[test]
    fn fsync_of_a_directory_commits_the_names_before_it() {
        let script =
            TestScript::with(&[("x", "")]).with_directory("d").create("a").create("d/b").fsync("d");
        exactly(EXT4, &script, &["a= d/ d/b= x="]);
    }

    #[test]
    fn fsync_of_a_directory_that_did_not_change_commits_nothing() {
        let script = TestScript::default().with_directory("d").create("a").fsync("d");
        exactly(EXT4, &script, &["d/", "a= d/"]);
    }

    #[test]
    fn fsync_commits_up_to_the_last_change_of_its_file() {
        // A timer may have committed in between, and then the second name is in a later transaction.
        let script = TestScript::default().create("a").create("b").fsync("a");
        exactly(EXT4, &script, &["a=", "a= b="]);
    }

    #[test]
    fn fdatasync_of_an_overwrite_commits_nothing() {
        let script = TestScript::with(&[("a", "old"), ("t", "")])
            .rename("t", "u")
            .write("a", 0, "new")
            .fdatasync("a");
        exactly(EXT4, &script, &["a=new t=", "a=new u="]);
    }

    #[test]
    fn fsync_of_a_clean_file_commits_nothing() {
        let script = TestScript::with(&[("a", "old"), ("t", "")]).rename("t", "u").fsync("a");
        exactly(EXT4, &script, &["a=old t=", "a=old u="]);
    }

    #[test]
    fn fdatasync_commits_a_new_size_but_not_a_mode() {
        let grown = TestScript::with(&[("a", "x")]).create("b").write("a", 1, "y").fdatasync("a");
        exactly(EXT4, &grown, &["a=xy b="]);
        let mode = |script: TestScript| {
            let node = crate::operation::Node(1);
            script.act(crate::operation::Action::Mode { node, mode: 0o600 })
        };
        let data = mode(TestScript::with(&[("a", "x")]).create("b")).fdatasync("a");
        exactly(EXT4, &data, &["a=x", "a=x b="]);
        let full = mode(TestScript::with(&[("a", "x")]).create("b")).fsync("a");
        exactly(EXT4, &full, &["a=x b="]);
    }

    #[test]
    fn a_synchronous_overwrite_makes_only_its_own_range_durable() {
        let text = page('.') + "....";
        let script = TestScript::with(&[("t", ""), ("a", text.as_str())])
            .rename("t", "u")
            .write("a", 0, "x")
            .write_dsync("a", 4096, "y");
        let states = script.states(EXT4);
        assert_eq!(states, set(&["a=[4100] t=", "a=[4100] u="]));
        let sizes_and_bytes = script.sizes_and_bytes(EXT4, "a", [0, 4096]);
        assert_eq!(sizes_and_bytes, BTreeSet::from([(4100, *b".y"), (4100, *b"xy")]));
    }

    #[test]
    fn a_synchronous_write_leaves_a_hole_where_bytes_before_it_were_delayed() {
        let page = "x".repeat(4096);
        let script =
            TestScript::with(&[("a", "")]).write("a", 0, &page).write_dsync("a", 4096, "y");
        let sizes_and_bytes = script.sizes_and_bytes(EXT4, "a", [0, 4096]);
        assert_eq!(sizes_and_bytes, BTreeSet::from([(4097, *b"\0y"), (4097, *b"xy")]));
    }

    #[test]
    fn a_synchronous_write_brings_the_size_of_its_page_whatever_the_journal_waits_for() {
        let old = "x".repeat(5000);
        let new = "y".repeat(4000);
        let flushed =
            TestScript::with(&[("a", "")]).create("t").write("t", 0, &old).rename("t", "a");
        let other =
            TestScript::with(&[("a", ""), ("b", "..")]).truncate("b", 1).write("a", 0, &old);
        for script in [flushed, other.write("b", 1, "z")] {
            let script = script.write("a", 4500, &new).write_dsync("a", 4096, "z");
            for (size, tail) in script.sizes_and_bytes(EXT4, "a", [8191]) {
                assert!(size >= 8192 && tail == *b"y", "{size} {tail:?}");
            }
        }
    }

    #[test]
    fn a_truncation_that_grows_the_file_on_disk_shows_the_bytes_before_it() {
        let text = page('.') + "....";
        let script = TestScript::with(&[("a", "")])
            .write("a", 0, &text)
            .write("a", 4096, "xxxx")
            .truncate("a", 4097)
            .write("a", 4097, "yyy")
            .truncate("a", 4098);
        let sizes_and_bytes = script.sizes_and_bytes(EXT4, "a", [4096, 4097]).into_iter();
        let tails: Vec<_> = sizes_and_bytes.filter(|(size, _)| *size == 4098).collect();
        assert!(tails.contains(&(4098, *b"x\0")) && tails.contains(&(4098, *b"xy")), "{tails:?}");
        // Never the bytes behind an earlier cut.
        assert!(tails.iter().all(|(_, [_, tail])| *tail != b'x'), "{tails:?}");
    }

    #[test]
    fn a_file_that_is_cut_and_grown_before_its_block_exists_may_be_zeros() {
        let script = TestScript::with(&[("a", "")]).write("a", 0, "abcd").truncate("a", 2);
        let script = script.truncate("a", 6);
        for model in [EXT4, LOCK] {
            some(model, &script, "a=000000");
            some(model, &script, "a=ab0000");
        }
        // The block exists, and the bytes behind the cut must not reappear.
        let script = TestScript::with(&[("a", "abcd")]).truncate("a", 2).truncate("a", 6);
        let states = script.states(EXT4);
        assert!(states.iter().all(|state| !state.ends_with("cd00")), "{states:?}");
    }

    #[test]
    fn a_synchronous_write_to_a_new_block_commits_the_names_before_it() {
        let script = TestScript::with(&[("a", "")]).create("b").write_dsync("a", 0, "x");
        exactly(EXT4, &script, &["a=x b="]);
    }

    #[test]
    fn a_sync_of_a_part_makes_that_part_durable() {
        let text = page('.') + &page('.');
        let script = TestScript::with(&[("a", text.as_str())])
            .map("a", 0, "x")
            .map("a", 4096, "y")
            .sync_part("a", 0, 4096);
        for model in [EXT4, Model::Posix] {
            let sizes_and_bytes = script.sizes_and_bytes(model, "a", [0, 4096]);
            assert_eq!(
                sizes_and_bytes,
                BTreeSet::from([(8192, *b"x."), (8192, *b"xy")]),
                "{model}"
            );
        }
    }

    #[test]
    fn sync_file_range_is_no_barrier() {
        let script = TestScript::default().create("a").write("a", 0, "x").sync_range("a");
        exactly(EXT4, &script, &["", "a=", "a=0", "a=x"]);
    }

    #[test]
    fn a_size_may_come_before_the_bytes_in_preallocated_blocks() {
        let script = TestScript::with(&[("a", "")]).allocate("a", 100).fsync("a");
        let once = script.write("a", 100, "x").sizes_and_bytes(EXT4, "a", [100]);
        assert_eq!(once, BTreeSet::from([(100, [0]), (101, [0]), (101, *b"x")]));
        let twice =
            TestScript::with(&[("a", "")]).allocate("a", 100).fsync("a").write("a", 100, "x");
        let twice = twice.write("a", 101, "y").sizes_and_bytes(EXT4, "a", [100, 101]);
        assert!(twice.contains(&(102, [0, 0])), "{twice:?}");
        // A block that did not exist comes with its bytes.
        let beyond = TestScript::with(&[("a", "")]).allocate("a", 4096).fsync("a");
        let beyond = beyond.write("a", 4096, "x");
        let states = beyond.sizes_and_bytes(LOCK, "a", [4096]);
        assert_eq!(states, BTreeSet::from([(4096, [0]), (4097, *b"x")]));
        let states = beyond.sizes_and_bytes(EXT4, "a", [4096]);
        assert_eq!(states, BTreeSet::from([(4096, [0]), (4097, [0]), (4097, *b"x")]));
    }

    #[test]
    fn a_replacement_with_preallocated_blocks_is_not_flushed() {
        let script = TestScript::with(&[("a", "old.")]).create("t").allocate("t", 4);
        let states = script.write("t", 0, "new.").rename("t", "a").states(EXT4);
        assert!(states.contains("a=0000") && states.contains("a=new."), "{states:?}");
    }

    #[test]
    fn preallocated_blocks_read_as_zeros_until_their_bytes_are_there() {
        let script = TestScript::with(&[("a", "")]).allocate("a", 4).fsync("a").write("a", 0, "xy");
        exactly(EXT4, &script, &["a=0000", "a=xy00"]);
    }

    #[test]
    fn a_durable_truncation_does_not_let_older_bytes_back() {
        let script = TestScript::with(&[("a", "...."), ("b", "")])
            .write("a", 0, "xxxx")
            .truncate("a", 1)
            .fsync(".")
            .write("b", 0, "1")
            .fsync("b");
        exactly(EXT4, &script, &["a=. b=1", "a=x b=1"]);
    }

    #[test]
    fn a_hole_brings_the_size_before_the_bytes_in_front_of_it() {
        let node = crate::operation::Node(1);
        let hole = |offset| crate::operation::Action::Zero {
            node,
            offset,
            length: 2,
            keep_size: true,
            hole: true,
        };
        let script = TestScript::with(&[("a", "")]).write("a", 0, "abcd");
        some(EXT4, &script.clone().act(hole(1)), "a=000");
        // Past the end there is nothing to punch.
        exactly(EXT4, &script.clone().act(hole(4)), &["a=", "a=0000", "a=abcd"]);
        exactly(LOCK, &script.clone().act(hole(4)), &["a=", "a=abcd"]);
        // Nor anything to zero.
        let zeros = crate::operation::Action::Zero {
            node,
            offset: 5,
            length: 2,
            keep_size: true,
            hole: false,
        };
        exactly(LOCK, &script.act(zeros).create("b"), &["a=", "a= b=", "a=abcd", "a=abcd b="]);
    }

    #[test]
    fn a_truncation_zeros_the_rest_of_its_page_before_it_is_committed() {
        let script = TestScript::with(&[("a", "abcd")]).truncate("a", 2);
        exactly(EXT4, &script, &["a=abcd", "a=ab00", "a=ab"]);
    }

    #[test]
    fn growth_that_is_lost_does_not_hide_bytes_before_the_end() {
        let script = TestScript::with(&[("a", "abcd")]).write("a", 3, "xy");
        exactly(EXT4, &script, &["a=abcd", "a=abcx", "a=abcd0", "a=abcxy"]);
    }

    #[test]
    fn punching_a_hole_keeps_the_bytes_around_it() {
        let node = crate::operation::Node(1);
        let script = TestScript::with(&[("a", "abcd")]).act(crate::operation::Action::Zero {
            node,
            offset: 1,
            length: 2,
            keep_size: true,
            hole: true,
        });
        exactly(EXT4, &script, &["a=abcd", "a=a00d"]);
    }

    #[test]
    fn hard_links_share_one_file() {
        let script =
            TestScript::with(&[("a", "old")]).link("a", "b").fsync("a").write("b", 0, "new");
        exactly(EXT4, &script, &["a=old b=old", "a=new b=new"]);
    }

    #[test]
    fn an_unlinked_open_file_is_nowhere() {
        let script =
            TestScript::with(&[("a", "x")]).remove("a").write("open a", 0, "y").fsync("open a");
        exactly(EXT4, &script, &[""]);
    }

    #[test]
    fn every_state_is_one_of_posix_too() {
        let script = TestScript::with(&[("a", "old")])
            .create("t")
            .write("t", 0, "new")
            .rename("t", "a")
            .write("a", 1, "xx")
            .truncate("a", 2);
        assert!(script.states(EXT4).is_subset(&script.states(Model::Posix)));
    }
}
