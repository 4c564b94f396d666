//! Runs git safely on a tree that a command or an agent may have written: nothing that the tree or
//! its repository names is executed, only what the user's own configuration names.
//!
//! Options and variables are the same for every call. Filters cannot be turned off in general:
//! attributes, which anyone can write, name them, and configuration defines their commands. So
//! filters that the repository itself configures are listed and replaced by empty ones.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use crate::git_dir;

/// Inserted before every subcommand.
pub const OPTIONS: [&str; 13] = [
    "--no-pager",
    // retake must not cause hooks or watchers to run.
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "protocol.ext.allow=never",
    "-c",
    "log.showSignature=false",
    "-c",
    "submodule.recurse=false",
    "-c",
    "core.quotePath=false",
];

/// Set by git for its hooks; they would lead to another repository than the requested one.
const CONFUSING: [&str; 9] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_CEILING_DIRECTORIES",
];

/// A prompt would wait forever, and retake parses messages.
pub const VARIABLES: [(&str, &str); 3] =
    [("GIT_TERMINAL_PROMPT", "0"), ("GIT_OPTIONAL_LOCKS", "0"), ("LC_ALL", "C")];

/// For work without other machines: a missing object is not fetched by a program that the
/// repository names.
pub const WITHOUT_NETWORK: [(&str, &str); 2] =
    [("GIT_NO_LAZY_FETCH", "1"), ("GIT_ALLOW_PROTOCOL", "none")];

/// The environment without variables that git sets for its hooks.
pub fn clean_environment(
    inherited: impl IntoIterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    let confusing = |name: &OsStr| CONFUSING.iter().any(|known| name == *known);
    inherited.into_iter().filter(|(name, _)| !confusing(name)).collect()
}

/// A file that makes git read configuration and hooks from elsewhere, at a place where git never
/// creates one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} makes git use another repository's configuration; remove it", .0.display())]
pub struct RedirectedRepository(pub PathBuf);

/// Refuses a repository that leads elsewhere. Checks the one that git would find from here.
pub fn check(directory: &Path) -> Result<(), RedirectedRepository> {
    let Some(dot_git) = directory.ancestors().map(|dir| dir.join(".git")).find(|git| git.exists())
    else {
        return Ok(());
    };
    let redirect = |dir: &Path| dir.join("commondir");
    if dot_git.is_dir() {
        return match fs::symlink_metadata(redirect(&dot_git)) {
            Ok(_) => Err(RedirectedRepository(redirect(&dot_git))),
            Err(_) => Ok(()),
        };
    }
    let named = git_dir::read_small(&dot_git).ok();
    let named = named.as_deref().and_then(|text| text.strip_prefix("gitdir:")).map(str::trim);
    let (Some(named), Some(top)) = (named, dot_git.parent()) else { return Ok(()) };
    let git_dir = top.join(named);
    let leads_away = git_dir::read_small(&redirect(&git_dir)).is_ok()
        && git_dir::linked_common(&git_dir).is_none();
    if leads_away { Err(RedirectedRepository(redirect(&git_dir))) } else { Ok(()) }
}

/// Lists the configuration for [`without_own_programs`]. Listing executes nothing.
pub const LIST_CONFIGURATION: [&str; 4] = ["config", "--show-scope", "-z", "--list"];

/// Variables that replace the filters that the repository itself configures, given the output of
/// [`LIST_CONFIGURATION`]. Those of Git LFS, recognised by their exact commands, stay.
pub fn without_own_programs(listed: &str) -> Vec<(String, String)> {
    let mut replaced: Vec<(String, &str)> = Vec::new();
    let mut words = listed.split('\0');
    while let (Some(scope), Some(entry)) = (words.next(), words.next()) {
        let (key, value) = entry.split_once('\n').unwrap_or((entry, "true"));
        if matches!(scope, "system" | "global" | "command") || is_lfs(key, value) {
            continue;
        }
        let Some((name, last)) = key.rsplit_once('.') else { continue };
        let instead = match last {
            "clean" | "smudge" | "process" if name.starts_with("filter.") => "",
            "required" if name.starts_with("filter.") => "false",
            "command" if name.starts_with("hook.") => "",
            _ => continue,
        };
        replaced.push((key.to_owned(), instead));
    }
    let mut variables = vec![("GIT_CONFIG_COUNT".to_owned(), replaced.len().to_string())];
    for (number, (key, instead)) in replaced.into_iter().enumerate() {
        variables.push((format!("GIT_CONFIG_KEY_{number}"), key));
        variables.push((format!("GIT_CONFIG_VALUE_{number}"), instead.to_owned()));
    }
    variables
}

/// Whether this is a setting that `git lfs install --local` writes.
fn is_lfs(key: &str, value: &str) -> bool {
    let known = [
        ("filter.lfs.clean", "git-lfs clean -- %f"),
        ("filter.lfs.smudge", "git-lfs smudge -- %f"),
        ("filter.lfs.smudge", "git-lfs smudge --skip -- %f"),
        ("filter.lfs.process", "git-lfs filter-process"),
        ("filter.lfs.process", "git-lfs filter-process --skip"),
        ("filter.lfs.required", "true"),
    ];
    known.contains(&(key, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git_dir::tests::{git, repository};

    #[test]
    fn only_what_the_repository_itself_configures_is_replaced() {
        let listed = "global\0filter.lfs.clean\ngit-lfs clean -- %f\0local\0core.bare\nfalse\0\
                      local\0filter.a=b.clean\nevil\0local\0filter.lfs.process\ngit-lfs filter-process\0\
                      worktree\0filter.x.required\ntrue\0";
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            without_own_programs(listed),
            [
                pair("GIT_CONFIG_COUNT", "2"),
                pair("GIT_CONFIG_KEY_0", "filter.a=b.clean"),
                pair("GIT_CONFIG_VALUE_0", ""),
                pair("GIT_CONFIG_KEY_1", "filter.x.required"),
                pair("GIT_CONFIG_VALUE_1", "false"),
            ]
        );
        assert_eq!(without_own_programs(""), [pair("GIT_CONFIG_COUNT", "0")]);
        let evil = "local\0filter.lfs.clean\ngit-lfs clean -- %f; evil\0";
        assert_eq!(without_own_programs(evil).len(), 3);
    }

    #[test]
    fn a_repository_that_points_to_another_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (top, other) = (dir.join("top"), dir.join("other"));
        repository(&top);
        repository(&other);
        git(&top, &["worktree", "add", "-q", "../linked"]);
        fs::create_dir(top.join("sub")).unwrap();
        for fine in [&top, &top.join("sub"), &dir.join("linked"), &dir] {
            assert_eq!(check(fine), Ok(()), "{}", fine.display());
        }
        let planted = top.join(".git/worktrees/linked/commondir");
        fs::write(&planted, "../../../../other/.git\n").unwrap();
        assert!(check(&dir.join("linked")).is_err());
        let planted = top.join(".git/commondir");
        fs::write(&planted, "../../other/.git\n").unwrap();
        assert_eq!(check(&top.join("sub")), Err(RedirectedRepository(planted)));
        // A `.git` file that leads to a manually created directory.
        let made = dir.join("made");
        fs::create_dir_all(made.join("work")).unwrap();
        fs::write(made.join("commondir"), "../other/.git").unwrap();
        fs::write(made.join("work/.git"), "gitdir: ..").unwrap();
        assert!(check(&made.join("work")).is_err());
    }
}
