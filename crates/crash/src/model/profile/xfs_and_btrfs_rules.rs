//! The rules of XFS and btrfs, one test each, as in [`super::rules`].

use std::collections::BTreeSet;

use super::rules::{exactly, page};
use crate::model::profile::Model;
use crate::model::test_script::TestScript;

mod xfs {
    use super::*;
    const XFS: Model = Model::Xfs;

    #[test]
    fn names_survive_as_a_prefix() {
        let script = TestScript::default().create("a").create("b").rename("a", "c");
        exactly(XFS, &script, &["", "a=", "a= b=", "b= c="]);
    }

    #[test]
    fn a_size_is_durable_only_after_its_bytes() {
        let script = TestScript::with(&[("a", "x")]).write("a", 1, "yz");
        exactly(XFS, &script, &["a=x", "a=xyz"]);
        let grown = TestScript::with(&[("a", &page('x'))]).write("a", 4096, &page('y'));
        let states = grown.sizes_and_bytes(XFS, "a", [0, 4096]);
        assert_eq!(states, BTreeSet::from([(4096, *b"x\0"), (8192, *b"xy")]));
    }

    #[test]
    fn pages_before_the_last_one_may_be_zeros() {
        let script =
            TestScript::with(&[("a", "")]).write("a", 0, &page('x')).write("a", 4096, &page('y'));
        let states = script.sizes_and_bytes(XFS, "a", [0, 4096]);
        let expected = [(0, *b"\0\0"), (4096, *b"x\0"), (8192, *b"\0y"), (8192, *b"xy")];
        assert_eq!(states, BTreeSet::from(expected));
    }

    #[test]
    fn replace_by_rename_may_leave_an_empty_file_and_never_zeros() {
        let script =
            TestScript::with(&[("a", "old")]).create("t").write("t", 0, "new").rename("t", "a");
        exactly(XFS, &script, &["a=old", "a=old t=", "a=old t=new", "a=", "a=new"]);
    }

    #[test]
    fn a_truncation_waits_for_earlier_bytes() {
        let script = TestScript::with(&[("a", "")]).write("a", 0, "xy").truncate("a", 5);
        exactly(XFS, &script, &["a=", "a=xy", "a=xy000"]);
    }

    #[test]
    fn an_allocation_inside_the_file_leaves_the_size_on_disk_alone() {
        let script =
            TestScript::with(&[("a", "x")]).write("a", 1, "yz").allocate("a", 2).create("b");
        exactly(XFS, &script, &["a=x", "a=x b=", "a=xyz", "a=xyz b="]);
    }

    #[test]
    fn zeros_in_the_last_block_are_bytes() {
        let hole = |script: TestScript| script.zero("a", 1, 100, true);
        let script = hole(TestScript::with(&[("a", "xxxx")]).write("a", 4, "yy"));
        exactly(XFS, &script, &["a=xxxx", "a=x000", "a=xxxxyy", "a=x00000"]);
        let longer = TestScript::with(&[("a", "xx")]).zero("a", 1, 3, false).fsync("a");
        exactly(XFS, &longer, &["a=x000"]);
    }

    #[test]
    fn a_block_that_is_given_back_comes_after_what_was_written_to_it() {
        let script = TestScript::with(&[("a", "xx")]).write("a", 2, "yy").zero("a", 0, 8192, true);
        exactly(XFS, &script, &["a=xx", "a=xxyy", "a=0000"]);
    }

    #[test]
    fn fdatasync_waits_for_everything_that_changed_the_inode() {
        let script = TestScript::with(&[("a", "x")]).rename("a", "b").fdatasync("b");
        exactly(XFS, &script, &["b=x"]);
    }

    #[test]
    fn fsync_of_an_overwrite_commits_nothing() {
        let script = TestScript::with(&[("a", "old"), ("t", "")])
            .rename("t", "u")
            .write("a", 0, "new")
            .fsync("a");
        exactly(XFS, &script, &["a=new t=", "a=new u="]);
    }
}

mod btrfs {
    use super::*;
    const BTRFS: Model = Model::Btrfs;

    #[test]
    fn names_survive_as_a_prefix() {
        let script = TestScript::default().create("a").create("b").rename("a", "c");
        exactly(BTRFS, &script, &["", "a=", "a= b=", "b= c="]);
    }

    #[test]
    fn appended_bytes_and_their_size_appear_together() {
        let script = TestScript::with(&[("a", "x")]).create("b").write("a", 1, "yz");
        exactly(BTRFS, &script, &["a=x", "a=x b=", "a=xyz b="]);
    }

    #[test]
    fn an_overwrite_is_ordered_too() {
        let script =
            TestScript::with(&[("a", "old"), ("t", "")]).rename("t", "u").write("a", 0, "new");
        exactly(BTRFS, &script, &["a=old t=", "a=old u=", "a=new u="]);
    }

    #[test]
    fn a_size_may_come_with_the_bytes_of_an_earlier_write() {
        let script =
            TestScript::with(&[("a", "")]).write("a", 0, &page('x')).write("a", 4096, &page('y'));
        let states = script.sizes_and_bytes(BTRFS, "a", [0, 4096]);
        assert!(states.contains(&(8192, *b"x\0")), "{states:?}");
        assert!(states.contains(&(8192, *b"\0y")), "{states:?}");
        assert!(!states.contains(&(8192, *b"\0\0")), "{states:?}");
    }

    #[test]
    fn zeros_in_the_last_block_are_bytes_and_need_no_place_in_the_transaction() {
        let script = TestScript::with(&[("a", "xx")]).zero("a", 1, 100, true).create("b");
        exactly(BTRFS, &script, &["a=xx", "a=x0", "a=xx b=", "a=x0 b="]);
    }

    #[test]
    fn an_allocation_inside_the_file_leaves_the_size_on_disk_alone() {
        let script =
            TestScript::with(&[("a", "x")]).write("a", 1, "yz").allocate("a", 2).create("b");
        exactly(BTRFS, &script, &["a=x", "a=x b=", "a=xyz", "a=xyz b="]);
    }

    #[test]
    fn fsync_of_a_directory_keeps_what_was_moved_in_but_not_that_the_old_name_is_gone() {
        let script =
            TestScript::with(&[("a", "x")]).with_directory("d").rename("a", "d/b").fsync("d");
        exactly(BTRFS, &script, &["a=x d/ d/b=x", "d/ d/b=x"]);
        let same = TestScript::with(&[("a", "x")]).rename("a", "b").fsync(".");
        exactly(BTRFS, &same, &["b=x"]);
    }

    #[test]
    fn replace_by_rename_may_leave_an_empty_file() {
        let script =
            TestScript::with(&[("a", "old")]).create("t").write("t", 0, "new").rename("t", "a");
        exactly(BTRFS, &script, &["a=old", "a=old t=", "a=old t=new", "a=", "a=new"]);
    }

    #[test]
    fn fsync_of_a_file_makes_its_name_durable_and_no_other() {
        let script = TestScript::default().create("b").create("a").write("a", 0, "x").fsync("a");
        exactly(BTRFS, &script, &["a=x", "a=x b="]);
    }

    #[test]
    fn an_operation_after_an_fsync_still_depends_on_those_before_it() {
        let script = TestScript::default().create("b").create("a").fsync("a").create("c");
        exactly(BTRFS, &script, &["a=", "a= b=", "a= b= c="]);
    }

    #[test]
    fn fsync_of_a_directory_makes_the_names_in_it_durable() {
        let script = TestScript::default().with_directory("d").create("a").create("d/b").fsync("d");
        exactly(BTRFS, &script, &["d/ d/b=", "a= d/ d/b="]);
    }
}
