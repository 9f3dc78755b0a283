//! The packages and the tarball: what they contain, and what their scripts do on a first installation, an upgrade and a removal.
//! Each is installed into a root of its own, whose `systemctl` only records its calls. A real systemd runs the service of the
//! Debian package in the guest, see `tests/teardown/service.rs`. Needs root, debhelper, rpm, lintian and busybox.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod built;
mod root;

use std::{collections::BTreeSet, fs, os::unix::fs::PermissionsExt as _};

use built::{Built, output};
use root::Root;

const SETTINGS: &str = "etc/default/pod-teardown";
const STATE: &str = "var/lib/pod-teardown/journal";
/// What a user has in the settings.
const EDITED: &str = "# mine\nPOD_TEARDOWN_MODE=auto\n";

/// Paths that only one family has, or has elsewhere.
fn is_of_one_family(path: &str) -> bool {
    let parts = [
        "/licenses/",
        "/copyright",
        "/changelog.gz",
        "/lintian/",
        "/system-preset/",
        "/zsh/",
        "/etc/default/",
    ];
    parts.iter().any(|part| path.contains(part))
}

/// What a user changes after the first installation.
fn edit(root: &Root) {
    root.write(SETTINGS, EDITED);
    root.write(STATE, "kept");
}

/// A first installation has the defaults, which observe. Only root can read the settings: they may get a token for the
/// OpenTelemetry collector.
fn assert_first_settings(root: &Root) {
    let settings = root.read(SETTINGS).unwrap();
    assert_eq!(settings, include_str!("../../systemd/pod-teardown.default"));
    let mode = fs::metadata(root.path(SETTINGS)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}

#[test]
fn deb_rpm_and_tarball_have_the_same_files() {
    let built = Built::get();
    let deb = built.deb_files("pod-teardown");
    let common = |files: BTreeSet<String>| -> BTreeSet<String> {
        files.into_iter().filter(|path| !is_of_one_family(path)).collect()
    };
    let rpm = built.rpm_files("pod-teardown");
    assert_eq!(common(deb.clone()), common(rpm.clone()));
    assert_eq!(common(deb.clone()), common(built.tarball_files()));
    for path in [
        "/usr/bin/pod-teardown",
        "/usr/bin/kubectl-teardown",
        "/usr/share/man/man8/pod-teardown-run.8.gz",
        "/usr/share/pod-teardown/kubelet.service.d/10-pod-teardown.conf",
        "/usr/share/doc/pod-teardown/docs/how-to/runbook.md",
    ] {
        assert!(deb.contains(path), "{path} is not in {deb:?}");
    }
    let is_drop_in = |path: &&String| path.contains("/systemd/") && path.contains("kubelet.service.d/");
    assert_eq!(deb.iter().chain(&rpm).find(is_drop_in), None, "the drop-in is opt-in");
}

#[test]
fn files_of_the_collector_are_in_a_package_of_their_own() {
    let built = Built::get();
    let (deb, rpm) = (built.deb_files("pod-teardown-gc"), built.rpm_files("pod-teardown-gc"));
    for path in [
        "/usr/bin/pod-teardown-gc-kubeconfig",
        "/usr/share/pod-teardown-gc/gc-rbac.yaml",
        "/usr/share/pod-teardown-gc/gc-alerts.yaml",
    ] {
        assert!(deb.contains(path) && rpm.contains(path), "{path}");
    }
    let agent = built.deb_files("pod-teardown");
    assert!(deb.is_disjoint(&agent), "{:?}", deb.intersection(&agent));
}

#[test]
fn lintian_finds_no_error_in_the_debian_packages() {
    let built = Built::get();
    let packages = ["pod-teardown", "pod-teardown-gc"].map(|name| built.deb(name, "next"));
    output(
        "lintian",
        &["--allow-root", "--fail-on=error", &packages[0], &packages[1]],
    );
}

#[test]
fn rpm_needs_only_a_shell_systemd_and_the_c_library() {
    let needed = output("rpm", &["-qp", "--requires", &Built::get().rpm("pod-teardown", "next")]);
    let known = [
        "/bin/sh",
        "config(",
        "ld-linux",
        "libc.so",
        "libgcc_s.so",
        "libm.so",
        "rpmlib(",
        "rtld(",
        "systemd",
    ];
    let unknown = needed
        .lines()
        .find(|line| !known.iter().any(|name| line.starts_with(name)));
    assert_eq!(unknown, None, "{needed}");
    assert!(needed.contains("libc.so.6(GLIBC_"), "{needed}");
}

#[test]
fn first_installation_of_a_deb_observes_and_an_upgrade_keeps_the_settings() {
    let (root, built) = (Root::for_deb(), Built::get());
    root.dpkg(&["--install", &built.deb("pod-teardown", "now")]);
    assert_first_settings(&root);
    edit(&root);
    root.dpkg(&["--install", &built.deb("pod-teardown", "next")]);
    assert_eq!(root.read(SETTINGS).as_deref(), Some(EDITED));
    fs::remove_file(root.path(SETTINGS)).unwrap();
    root.dpkg(&["--install", &built.deb("pod-teardown", "now")]);
    assert_eq!(root.read(SETTINGS), None, "its owner has deleted it");
}

/// A power cut may empty a file that was not flushed.
#[test]
fn settings_are_flushed_before_they_have_their_name_and_empty_ones_are_repaired() {
    let built = Built::get();
    let (deb, rpm, tarball) = (Root::for_deb(), Root::for_rpm(), Root::for_tarball());
    tarball.unpack(&built.tarball("now"));
    let install_deb = |version: &str| deb.dpkg(&["--install", &built.deb("pod-teardown", version)]);
    let install_rpm = |version: &str| rpm.rpm(&["--upgrade", &built.rpm("pod-teardown", version)]);
    let install_tarball = |_: &str| tarball.run(&["sh", "/unpacked/install.sh"]);
    type Install<'a> = &'a dyn Fn(&str);
    let cases: [(&Root, Install<'_>); 3] = [(&deb, &install_deb), (&rpm, &install_rpm), (&tarball, &install_tarball)];
    let replaced = [
        "sync /etc/default/pod-teardown.new",
        "mv -f /etc/default/pod-teardown.new /etc/default/pod-teardown",
    ];
    for (root, install) in cases {
        install("now");
        let first = root.writes_of_settings();
        assert!(
            first.last().is_some_and(|last| last.ends_with(" /etc/default")),
            "{first:?}"
        );
        root.write(SETTINGS, "");
        install("next");
        assert_first_settings(root);
        assert_eq!(root.writes_of_settings()[..2], replaced);
    }
}

#[test]
fn removal_of_a_deb_keeps_settings_and_state_and_a_purge_removes_them() {
    let (root, built) = (Root::for_deb(), Built::get());
    root.dpkg(&["--install", &built.deb("pod-teardown", "now")]);
    edit(&root);
    root.dpkg(&["--remove", "pod-teardown"]);
    assert_eq!(root.read(SETTINGS).as_deref(), Some(EDITED));
    assert!(root.path(STATE).exists());
    assert!(!root.path("usr/bin/pod-teardown").exists());
    root.dpkg(&["--purge", "pod-teardown"]);
    for gone in [SETTINGS, "var/lib/pod-teardown"] {
        assert!(!root.path(gone).exists(), "{gone}");
    }
}

#[test]
fn first_installation_of_an_rpm_observes_and_starts_unless_a_preset_forbids_it() {
    let (root, built) = (Root::for_rpm(), Built::get());
    root.rpm(&["--install", "--test", &built.rpm("pod-teardown", "now")]);
    assert!(!root.path("usr/bin/pod-teardown").exists());
    root.rpm(&["--install", &built.rpm("pod-teardown", "now")]);
    assert_first_settings(&root);
    assert_eq!(
        root.calls(),
        [
            "--no-reload preset pod-teardown.service",
            "daemon-reload",
            "--quiet is-enabled pod-teardown.service",
            "start pod-teardown.service",
        ]
    );

    let root = Root::for_rpm();
    root.write("forbidden", "");
    root.rpm(&["--install", &built.rpm("pod-teardown", "now")]);
    assert!(!root.calls().iter().any(|call| call.starts_with("start")));
}

#[test]
fn upgrade_of_an_rpm_keeps_the_settings_and_restarts() {
    let (root, built) = (Root::for_rpm(), Built::get());
    root.rpm(&["--install", &built.rpm("pod-teardown", "now")]);
    edit(&root);
    root.calls();
    root.rpm(&["--upgrade", &built.rpm("pod-teardown", "next")]);
    assert_eq!(root.read(SETTINGS).as_deref(), Some(EDITED));
    assert!(root.path(STATE).exists());
    assert_eq!(
        root.calls(),
        ["daemon-reload", "daemon-reload", "try-restart pod-teardown.service"]
    );
}

#[test]
fn removal_of_an_rpm_stops_the_service_and_keeps_state_and_changed_settings() {
    let (root, built) = (Root::for_rpm(), Built::get());
    root.rpm(&["--install", &built.rpm("pod-teardown", "now")]);
    edit(&root);
    root.calls();
    root.rpm(&["--erase", "pod-teardown"]);
    assert_eq!(
        root.calls(),
        ["--no-reload disable --now pod-teardown.service", "daemon-reload"]
    );
    assert!(root.path(STATE).exists());
    assert_eq!(root.read(&format!("{SETTINGS}.rpmsave")).as_deref(), Some(EDITED));
    assert!(!root.path("usr/bin/pod-teardown").exists());
}

#[test]
fn tarball_is_installed_once_upgraded_and_removed() {
    let (root, built) = (Root::for_tarball(), Built::get());
    let files = root.files();
    root.unpack(&built.tarball("now"));
    root.run(&["sh", "/unpacked/install.sh"]);
    assert_first_settings(&root);
    let unit = root.read("etc/systemd/system/pod-teardown.service").unwrap();
    assert!(unit.contains("\nExecStart=/usr/local/bin/pod-teardown run\n"), "{unit}");
    assert_eq!(
        root.calls(),
        [
            "daemon-reload",
            "--quiet enable pod-teardown.service",
            "start pod-teardown.service"
        ]
    );
    edit(&root);
    root.run(&["sh", "/unpacked/install.sh"]);
    assert_eq!(root.calls(), Vec::<String>::new(), "nothing has changed");

    // Another version has another page and lacks one.
    let pages = "unpacked/files/usr/share/doc/pod-teardown/docs";
    root.write(&format!("{pages}/README.md"), "new");
    fs::remove_file(root.path(format!("{pages}/tutorial.md"))).unwrap();
    root.run(&["sh", "/unpacked/install.sh"]);
    assert_eq!(root.calls(), ["daemon-reload", "try-restart pod-teardown.service"]);
    assert_eq!(root.read(SETTINGS).as_deref(), Some(EDITED));
    let page = |name| root.read(&format!("usr/local/share/doc/pod-teardown/docs/{name}"));
    assert_eq!(page("README.md").as_deref(), Some("new"));
    assert_eq!(page("tutorial.md"), None);

    root.run(&["sh", "/usr/local/share/pod-teardown/uninstall.sh"]);
    assert_eq!(
        root.calls(),
        [
            "--quiet stop pod-teardown.service",
            "--quiet disable pod-teardown.service",
            "daemon-reload"
        ]
    );
    assert_eq!(root.read(SETTINGS).as_deref(), Some(EDITED));
    assert!(root.path(STATE).exists());
    root.run(&["sh", "/unpacked/uninstall.sh", "--purge"]);
    root.run(&["rm", "-r", "/unpacked"]);
    let left = root.files();
    assert_eq!(
        left.symmetric_difference(&files).collect::<Vec<_>>(),
        Vec::<&String>::new()
    );
}

#[test]
fn installation_that_systemd_has_refused_is_completed_by_the_next_run() {
    let (root, built) = (Root::for_tarball(), Built::get());
    root.unpack(&built.tarball("now"));
    root.write("broken", "");
    root.refused(&["sh", "/unpacked/install.sh"]);
    fs::remove_file(root.path("broken")).unwrap();
    root.calls();
    root.run(&["sh", "/unpacked/install.sh"]);
    let complete = [
        "daemon-reload",
        "--quiet enable pod-teardown.service",
        "start pod-teardown.service",
    ];
    assert_eq!(root.calls(), complete);
    root.run(&["sh", "/unpacked/install.sh"]);
    assert_eq!(root.calls(), Vec::<String>::new());
}

#[test]
fn tarball_is_not_installed_over_a_package() {
    let (root, built) = (Root::for_tarball(), Built::get());
    root.unpack(&built.tarball("now"));
    root.write("usr/lib/systemd/system/pod-teardown.service", "");
    let refused = root.refused(&["sh", "/unpacked/install.sh"]);
    assert!(
        refused.contains("a package has installed pod-teardown here"),
        "{refused}"
    );
    assert!(!root.path("usr/local/bin/pod-teardown").exists());
}
