//! Workspaces on disk: layout, archives, locking, and control of a loop.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use jiff::Timestamp;
use retake_agent::control::Mailbox;
use retake_agent::status::{Completion, Marks, Source, StatusFiles};
use retake_agent::workspace::{
    Metadata, Name, TemplateFile, Workspace, WorkspaceDirectories, WorkspaceError, WorkspaceLock,
    WorkspaceLockError, WorkspaceStatus, problems,
};
use retake_types::loop_record::agent::Mode;

fn completion(workspace: &Workspace, since: Marks, todo_fallback: bool) -> Completion {
    StatusFiles::read(&workspace.status_paths(), todo_fallback).completion(since)
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn now() -> Timestamp {
    Timestamp::from_second(1_760_538_225).unwrap()
}

struct Project {
    dir: tempfile::TempDir,
    places: WorkspaceDirectories,
}

impl Project {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut places = WorkspaceDirectories::of_project(dir.path());
        places.global_templates = Some(dir.path().join("global"));
        Self { dir, places }
    }

    fn workspace(&self, text: &str) -> Workspace {
        let metadata = Metadata::new(text, Mode::Loop, now());
        let workspace = self.places.create(&name(text), &metadata).unwrap();
        std::fs::write(workspace.instructions_path(), "Do it.").unwrap();
        workspace
    }
}

fn entries(dir: &Path) -> Vec<String> {
    let mut all: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    all.sort();
    all
}

#[test]
fn layout_and_metadata_as_documented() {
    let project = Project::new();
    let metadata = Metadata::new("my-task", Mode::Iterative, now());
    let workspace = project.places.create(&name("my-task"), &metadata).unwrap();
    assert_eq!(workspace.dir(), project.dir.path().join(".agent/workspaces/my-task"));
    assert_eq!(entries(workspace.dir()), [".metadata.json", "TODO.md", "reports", "working"]);
    let text = std::fs::read_to_string(workspace.metadata_path()).unwrap();
    assert_eq!(
        text,
        r#"{
  "name": "my-task",
  "created": "2025-10-15T14:23:45Z",
  "status": "in_progress",
  "totalIterations": 0,
  "setupIterations": 0,
  "executionIterations": 0,
  "mode": "iterative",
  "maxIterations": 20,
  "delay": 2,
  "stagnationThreshold": 2,
  "notifyEvents": [
    "all"
  ]
}
"#
    );
    let again = project.places.create(&name("my-task"), &metadata);
    assert!(matches!(again, Err(WorkspaceError::Exists(_))));
    assert_eq!(entries(&project.places.workspaces), ["my-task"]);
    let missing = project.places.open(&name("other")).unwrap_err();
    assert_eq!(missing.to_string(), "Workspace not found: other");
}

#[test]
fn unknown_keys_survive_a_rewrite() {
    let project = Project::new();
    let workspace = project.workspace("t");
    std::fs::write(
        workspace.metadata_path(),
        r#"{"name":"t","created":"2025-10-16T14:30:00+02:00","future":{"a":[1]},
            "verification":{"verificationAttempts":1,"more":true},"config":{"claude":{"args":["-x"]}}}"#,
    )
    .unwrap();
    workspace.update(|metadata| metadata.count_execution(now())).unwrap();
    workspace.update(Metadata::count_setup).unwrap();
    let value: serde_json::Value =
        serde_json::from_slice(&std::fs::read(workspace.metadata_path()).unwrap()).unwrap();
    assert_eq!(value["future"]["a"][0], 1);
    assert_eq!(value["verification"]["more"], true);
    assert_eq!(value["config"]["claude"]["args"][0], "-x");
    assert_eq!(
        (&value["executionIterations"], &value["setupIterations"], &value["totalIterations"]),
        (&1.into(), &1.into(), &2.into())
    );
    let metadata = workspace.update(|metadata| metadata.reset(now())).unwrap();
    assert_eq!((metadata.total_iterations, metadata.last_run), (0, None));
    for nonsense in [
        r#"{"name":"t"}"#,
        "{",
        r#"{"name":"t","created":"2025-10-16T14:30:00Z","maxIterations":0}"#,
    ] {
        std::fs::write(workspace.metadata_path(), nonsense).unwrap();
        assert!(workspace.metadata().is_err(), "{nonsense}");
    }
}

#[test]
fn listed_by_name_with_broken_ones() {
    let project = Project::new();
    for text in ["b", "a", "c"] {
        project.workspace(text);
    }
    std::fs::write(project.places.workspaces.join("b/.metadata.json"), "{").unwrap();
    std::fs::create_dir(project.places.workspaces.join("not a name")).unwrap();
    let all = project.places.list().unwrap();
    let seen: Vec<_> = all.iter().map(|(w, m)| (w.name().as_str(), m.is_ok())).collect();
    assert_eq!(seen, [("a", true), ("b", false), ("c", true)]);
    assert!(WorkspaceDirectories::of_project(Path::new("/nowhere")).list().unwrap().is_empty());
}

#[test]
fn archived_and_restored_whole() {
    let project = Project::new();
    let workspace = project.workspace("t");
    std::fs::write(workspace.working_dir().join("note"), "n").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", workspace.dir().join("link")).unwrap();
    std::fs::write(workspace.dir().join(".lock"), "x").unwrap();
    let kept = project.places.archive(&workspace, now(), true).unwrap();
    assert_eq!(kept.archive_name, "t-2025-10-15T14-23-45");
    let second = project.places.archive(&workspace, now(), false).unwrap();
    assert_eq!(second.archive_name, "t-2025-10-15T14-23-45-2");
    assert!(!workspace.dir().exists());
    assert_eq!(project.places.archives().unwrap().len(), 2);
    let about = project.places.archive.join(&second.archive_name).join(".archived.json");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(about).unwrap()).unwrap();
    for key in ["originalName", "archiveName", "archivedAt", "archivedFrom"] {
        assert!(json[key].is_string(), "{key}");
    }
    let archive = name(&second.archive_name);
    let back = project.places.restore(&archive, Some(&name("u"))).unwrap();
    assert_eq!(back.metadata().unwrap().name, "u");
    assert_eq!(
        entries(back.dir()),
        [".metadata.json", "INSTRUCTIONS.md", "TODO.md", "link", "reports", "working"]
    );
    assert!(back.dir().join("link").symlink_metadata().unwrap().is_symlink());
    assert_eq!(std::fs::read_to_string(back.working_dir().join("note")).unwrap(), "n");
    project.places.restore(&archive, None).unwrap();
    assert!(matches!(project.places.restore(&archive, None), Err(WorkspaceError::Exists(_))));
    project.places.delete_archive(&archive).unwrap();
    assert!(matches!(project.places.restore(&archive, None), Err(WorkspaceError::NoArchive(_))));
    project.places.delete(&back).unwrap();
    assert_eq!(entries(&project.places.workspaces), ["t"]);
}

#[test]
fn an_archive_cannot_say_where_it_goes() {
    let project = Project::new();
    let workspace = project.workspace("t");
    let kept = project.places.archive(&workspace, now(), true).unwrap();
    let about = project.places.archive.join(&kept.archive_name).join(".archived.json");
    let text = std::fs::read_to_string(&about).unwrap();
    std::fs::write(&about, text.replace("\"t\"", "\"../../evil\"")).unwrap();
    let restored = project.places.restore(&name(&kept.archive_name), None);
    assert!(matches!(restored, Err(WorkspaceError::Name(_))));
}

#[test]
fn templates() {
    let project = Project::new();
    let workspace = project.workspace("t");
    workspace.update(|m| m.max_iterations = Some(7)).unwrap();
    let about = |text: &str| TemplateFile {
        name: text.to_owned(),
        description: Some("d".into()),
        tags: vec!["x".into()],
        estimated_iterations: Some(5),
        created: now(),
        mode: Mode::Iterative,
        max_iterations: None,
        delay: None,
    };
    project.places.save_template(&workspace, about("tpl"), true, false).unwrap();
    assert!(project.places.template(&name("tpl")).unwrap().global);
    project.places.save_template(&workspace, about("tpl"), false, false).unwrap();
    assert!(
        !project.places.template(&name("tpl")).unwrap().global,
        "the project's own comes first"
    );
    assert_eq!(project.places.templates().unwrap().len(), 1);
    let twice = project.places.save_template(&workspace, about("tpl"), false, false);
    assert!(matches!(twice, Err(WorkspaceError::TemplateExists(_))));
    project.places.save_template(&workspace, about("tpl"), false, true).unwrap();
    assert!(project.places.save_template(&workspace, about("../x"), false, true).is_err());
    let made = project.places.use_template(&name("tpl"), &name("n"), now()).unwrap();
    let metadata = made.metadata().unwrap();
    assert_eq!((metadata.mode, metadata.max_iterations), (Mode::Loop, Some(7)));
    assert_eq!(made.instructions().unwrap().as_deref(), Some("Do it."));
    project.places.delete_template(&name("tpl"), false).unwrap();
    assert!(project.places.template(&name("tpl")).unwrap().global);
    project.places.delete_template(&name("tpl"), true).unwrap();
    assert!(project.places.template(&name("tpl")).is_err());
}

#[test]
fn problems_are_named() {
    let project = Project::new();
    let workspace = project.workspace("t");
    assert!(problems(&workspace).is_empty());
    std::fs::write(workspace.instructions_path(), " \n").unwrap();
    std::fs::write(workspace.status_path(), "{}").unwrap();
    std::fs::remove_dir(workspace.reports_dir()).unwrap();
    workspace.update(|m| m.name = "u".into()).unwrap();
    let all = problems(&workspace).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for part in [
        "names the workspace",
        "there are no instructions",
        "complete is missing",
        "reports is missing",
    ] {
        assert!(all.contains(part), "{part}: {all}");
    }
}

#[test]
fn a_lock_has_one_holder_and_is_reclaimed_from_a_dead_one() {
    let project = Project::new();
    let workspace = project.workspace("t");
    assert!(WorkspaceLock::holder(&workspace).is_none());
    let lock = WorkspaceLock::acquire(&workspace, "run").unwrap();
    assert!(lock.abandoned().is_none());
    let refused = WorkspaceLock::acquire(&workspace, "run").unwrap_err();
    let text = refused.to_string();
    let me = format!("`retake agent run t` (pid {}", std::process::id());
    assert!(text.starts_with(&format!("Workspace t is in use by {me}")), "{text}");
    assert!(matches!(refused, WorkspaceLockError::Held { .. }));
    assert!(WorkspaceLock::holder(&workspace).unwrap().starts_with(&me));
    drop(lock);
    assert!(WorkspaceLock::acquire(&workspace, "run").unwrap().abandoned().is_none());
    // A holder that died leaves its name but no lock.
    let left = "`retake agent run t` (pid 1 on h, since 2025-10-16T14:30:00Z)";
    std::fs::write(workspace.loop_state_dir().join("lock"), left).unwrap();
    assert!(WorkspaceLock::holder(&workspace).is_none());
    let lock = WorkspaceLock::acquire(&workspace, "run").unwrap();
    assert_eq!(lock.abandoned(), Some(left));
}

#[test]
fn messages_are_used_once() {
    let project = Project::new();
    let workspace = project.workspace("t");
    let loop_side = Mailbox::of(&workspace).unwrap();
    let other = Mailbox::of(&workspace).unwrap();
    loop_side.begin().unwrap();
    other.tell("first $1 {{x}}", 1).unwrap();
    other.tell("second", 2).unwrap();
    assert!(other.tell("  ", 3).is_err() && other.tell(&"x".repeat(70_000), 3).is_err());
    assert_eq!(other.waiting().unwrap().len(), 2);
    assert_eq!(loop_side.take(4).unwrap(), ["first $1 {{x}}", "second"]);
    // A second attempt at the same iteration, with another message in between.
    other.tell("third", 4).unwrap();
    assert_eq!(loop_side.take(4).unwrap().len(), 3);
    loop_side.discard_taken(4).unwrap();
    assert!(loop_side.take(5).unwrap().is_empty());
    // If an iteration takes a message and dies, the next one gets it.
    other.tell("fourth", 5).unwrap();
    assert_eq!(loop_side.take(6).unwrap(), ["fourth"]);
    loop_side.begin().unwrap();
    assert_eq!(loop_side.take(7).unwrap(), ["fourth"]);
    loop_side.discard_taken(7).unwrap();
    loop_side.begin().unwrap();
    assert!(loop_side.take(8).unwrap().is_empty());
}

#[test]
fn stop_and_pause_reach_the_loop_that_runs() {
    let project = Project::new();
    let workspace = project.workspace("t");
    let mailbox = Mailbox::of(&workspace).unwrap();
    mailbox.stop().unwrap();
    mailbox.pause().unwrap();
    assert!(mailbox.requests().stop && mailbox.requests().pause);
    // Requests to a loop that is gone.
    mailbox.begin().unwrap();
    assert_eq!(mailbox.requests(), Default::default());
    mailbox.pause().unwrap();
    mailbox.resume().unwrap();
    mailbox.resume().unwrap();
    assert!(!mailbox.requests().pause);
    mailbox.stop().unwrap();
    mailbox.end().unwrap();
    assert!(!mailbox.requests().stop);
}

#[test]
fn completion_counts_only_when_said_in_this_run() {
    let project = Project::new();
    let workspace = project.workspace("t");
    let complete = r#"{"complete":true,"worked":false,"progress":{"completed":2,"total":2}}"#;
    std::fs::write(workspace.status_path(), complete).unwrap();
    let start = Marks::take(&workspace.status_paths());
    let found = completion(&workspace, start, true);
    assert!(!found.complete && found.stale && found.worked.is_none());
    assert_eq!((found.source, found.remaining), (Source::Status, Some(0)));
    // The same content, written again, by rename.
    let staged = workspace.dir().join("new");
    std::fs::write(&staged, complete).unwrap();
    std::fs::rename(&staged, workspace.status_path()).unwrap();
    let found = completion(&workspace, start, true);
    assert!(found.complete && !found.stale);
    assert_eq!(found.worked, Some(false));
}

#[test]
fn check_boxes_decide_only_without_a_valid_status() {
    let project = Project::new();
    let workspace = project.workspace("t");
    let start = Marks::take(&workspace.status_paths());
    assert_eq!(completion(&workspace, start, true).source, Source::Nothing);
    std::fs::write(workspace.todo_path(), "- [x] a\n- [x] b\n").unwrap();
    let found = completion(&workspace, start, true);
    assert_eq!((found.source, found.complete, found.remaining), (Source::Todo, true, Some(0)));
    assert!(!completion(&workspace, start, false).complete);
    assert!(completion(&workspace, Marks::take(&workspace.status_paths()), true).stale);
    std::fs::write(workspace.status_path(), r#"{"complete":"yes"}"#).unwrap();
    let found = completion(&workspace, start, true);
    assert!(found.complete && found.invalid.unwrap().contains("complete is \"yes\""));
    std::fs::write(workspace.status_path(), r#"{"complete":false}"#).unwrap();
    let found = completion(&workspace, start, true);
    assert_eq!((found.source, found.complete), (Source::Status, false));
}

#[test]
fn words_of_a_status() {
    for status in [WorkspaceStatus::InProgress, WorkspaceStatus::Completed, WorkspaceStatus::Error]
    {
        assert_eq!(serde_json::to_value(status).unwrap(), status.as_str());
        assert_eq!(status.as_str().parse(), Ok(status));
    }
}
