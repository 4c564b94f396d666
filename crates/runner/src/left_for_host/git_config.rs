//! Which keys of a git configuration name programs, or include more configuration.

use std::collections::BTreeSet;

use retake_sandbox::git_config_entries as entries;

use super::bounded;

/// Keys whose value always is a program, a directory of programs, or another configuration; `*`
/// stands for any name.
const PROGRAMS: [&str; 48] = [
    "core.fsmonitor",
    "core.hookspath",
    "core.sshcommand",
    "core.editor",
    "core.pager",
    "core.askpass",
    "core.gitproxy",
    "core.alternaterefscommand",
    "core.worktree",
    "core.attributesfile",
    "sequence.editor",
    "interactive.difffilter",
    "diff.external",
    "diff.*.command",
    "diff.*.textconv",
    "filter.*.clean",
    "filter.*.smudge",
    "filter.*.process",
    "merge.*.driver",
    "mergetool.*.cmd",
    "mergetool.*.path",
    "difftool.*.cmd",
    "difftool.*.path",
    "guitool.*.cmd",
    "browser.*.cmd",
    "browser.*.path",
    "man.*.cmd",
    "man.*.path",
    "gpg.program",
    "gpg.*.program",
    "gpg.*.defaultkeycommand",
    "credential.helper",
    "credential.*.helper",
    "remote.*.uploadpack",
    "remote.*.receivepack",
    "remote.*.vcs",
    "uploadpack.packobjectshook",
    "init.templatedir",
    "imap.tunnel",
    "sendemail.smtpserver",
    "sendemail.*.smtpserver",
    "tar.*.command",
    "instaweb.httpd",
    "trailer.*.command",
    "trailer.*.cmd",
    "hook.*.command",
    "include.path",
    "includeif.*.path",
];

/// Whether a value is a program.
type IsProgram = fn(&str) -> bool;

/// Keys whose value decides whether it is a program.
const PERHAPS: [(&str, IsProgram); 6] = [
    ("alias.*", |value| value.starts_with('!')),
    ("submodule.*.update", |value| value.starts_with('!')),
    ("pager.*", |value| !matches!(value, "true" | "false" | "yes" | "no" | "on" | "off" | "")),
    ("remote.*.url", |value| value.contains("::")),
    ("remote.*.pushurl", |value| value.contains("::")),
    ("protocol.*.allow", |value| value != "never"),
];

/// The keys that name programs, with values that the configuration did not have before.
pub(super) fn new_programs(before: &[u8], now: &[u8]) -> Vec<String> {
    let before: BTreeSet<(String, String)> = entries(before).into_iter().collect();
    let mut names = BTreeSet::new();
    for (key, value) in entries(now) {
        if names_program(&key, &value) && !before.contains(&(key.clone(), value)) {
            names.insert(key);
        }
    }
    bounded(names.into_iter())
}

fn names_program(key: &str, value: &str) -> bool {
    // A disabled monitor is not a program.
    if key == "core.fsmonitor" && matches!(value, "false" | "no" | "off" | "0") {
        return false;
    }
    PROGRAMS.iter().any(|pattern| matches(pattern, key))
        || PERHAPS.iter().any(|(pattern, program)| matches(pattern, key) && program(value))
}

fn matches(pattern: &str, key: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == key,
        Some((start, end)) => {
            key.len() >= pattern.len() && key.starts_with(start) && key.ends_with(end)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(text: &str) -> Vec<String> {
        new_programs(b"", text.as_bytes())
    }

    #[test]
    fn programs_are_found_however_they_are_written() {
        for text in [
            "[core]\n\tfsmonitor = ./x\n",
            "[CORE] FsMonitor=./x",
            "[core]\n fsmonitor = \\\n ./x\n",
            "\u{feff}[core]\nfsmonitor=\"./x\" ; c",
        ] {
            assert_eq!(programs(text), ["core.fsmonitor"], "{text}");
        }
        assert_eq!(programs("[filter \"a ] b\"]\n clean = x"), ["filter.a ] b.clean"]);
        assert_eq!(programs("[filter.a]\n process = x"), ["filter.a.process"]);
        assert_eq!(programs("[alias]\n s = !sh\n t = status"), ["alias.s"]);
        assert_eq!(programs("[remote \"o\"]\n url = ext::sh -c x"), ["remote.o.url"]);
        assert_eq!(programs("[include\npath = x"), ["include.path"]);
    }

    #[test]
    fn the_usual_git_configuration_names_no_program() {
        let usual = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tfsmonitor = false\n\
                     [remote \"origin\"]\n\turl = https://example.com/x.git\n\
                     [branch \"main\"]\n\tremote = origin\n[pager]\n\tlog = false\n";
        assert_eq!(programs(usual), [""; 0]);
    }

    #[test]
    fn only_new_programs_of_git_configuration_are_reported() {
        let before = b"[core]\n pager = less\n[diff]\n external = a\n";
        let now = b"[core]\n pager = less\n[diff]\n external = b\n";
        assert_eq!(new_programs(before, now), ["diff.external"]);
    }
}
