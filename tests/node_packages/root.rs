//! A root directory with a shell, and a `systemctl` that only records its calls.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;
use testbed::command::copy_program;

use crate::built::{output, run};

/// A unit is enabled by `preset` and `enable`, unless there is a file `/forbidden`. With a file `/broken`, every call fails.
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >>/calls
[ ! -e /broken ] || exit 1
case " $* " in
*" preset "* | *" enable "*) [ -e /forbidden ] || : >/enabled ;;
*" disable "*) rm -f /enabled ;;
*" is-enabled "*) [ -e /enabled ] ;;
esac
"#;

/// `sync` and `mv` also record their calls.
const RECORDED: &str = r#"#!/bin/sh
echo "${0##*/} $*" >>/writes
exec /bin/busybox "${0##*/}" "$@"
"#;

pub struct Root {
    dir: TempDir,
}

impl Root {
    fn new() -> Self {
        let root = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        for directory in [
            "bin",
            "usr/bin",
            "usr/local/bin",
            "etc/default",
            "etc/systemd/system",
            "run/systemd/system",
            "tmp",
            "dev",
            "var/lib",
        ] {
            fs::create_dir_all(root.path(directory)).unwrap();
        }
        root.write("dev/null", "");
        copy_program("/bin/busybox", root.path("bin/busybox")).unwrap();
        for applet in output("/bin/busybox", &["--list"]).lines() {
            symlink("busybox", root.path("bin").join(applet)).ok();
        }
        // The shell of busybox prefers its own sync and mv.
        fs::remove_file(root.path("bin/sh")).unwrap();
        copy_program("/bin/dash", root.path("bin/sh")).unwrap();
        root.copy_libraries("/bin/dash");
        for (program, text) in [
            ("usr/bin/systemctl", SYSTEMCTL),
            ("bin/sync", RECORDED),
            ("bin/mv", RECORDED),
        ] {
            // In place of a link to busybox.
            fs::remove_file(root.path(program)).ok();
            root.write(program, text);
            fs::set_permissions(root.path(program), fs::Permissions::from_mode(0o755)).unwrap();
        }
        root
    }

    pub fn for_deb() -> Self {
        let root = Self::new();
        for file in ["status", "available"] {
            root.write(&format!("var/lib/dpkg/{file}"), "");
        }
        for directory in ["info", "updates", "triggers"] {
            fs::create_dir_all(root.path("var/lib/dpkg").join(directory)).unwrap();
        }
        root
    }

    pub fn for_rpm() -> Self {
        let root = Self::new();
        output("rpm", &["--root", &root.path("").display().to_string(), "--initdb"]);
        root
    }

    /// With the libraries of the program.
    pub fn for_tarball() -> Self {
        let root = Self::new();
        root.copy_libraries(env!("CARGO_BIN_EXE_pod-teardown"));
        root
    }

    fn copy_libraries(&self, program: &str) {
        let libraries = output("ldd", &[program]);
        for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
            let copy = self.path(library.trim_start_matches('/'));
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(library, copy).unwrap();
        }
    }

    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(path)
    }

    pub fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Calls of systemctl since the last query.
    pub fn calls(&self) -> Vec<String> {
        let calls = self.read("calls").unwrap_or_default();
        fs::remove_file(self.path("calls")).ok();
        calls.lines().map(str::to_owned).collect()
    }

    /// Calls of `sync` and `mv` for `/etc/default` since the last query.
    pub fn writes_of_settings(&self) -> Vec<String> {
        let writes = self.read("writes").unwrap_or_default();
        fs::remove_file(self.path("writes")).ok();
        let writes = writes.lines().filter(|line| line.contains("/etc/default"));
        writes.map(str::to_owned).collect()
    }

    /// All paths in it, except for what the recording programs write.
    pub fn files(&self) -> BTreeSet<String> {
        let root = self.path("").display().to_string();
        let listed = output("find", &[&root]);
        let paths = listed.lines().map(|path| path.trim_start_matches(&root).to_owned());
        paths
            .filter(|path| !["calls", "enabled", "writes"].contains(&&**path))
            .collect()
    }

    fn chroot(&self, command: &[&str]) -> Command {
        let mut chroot = Command::new("chroot");
        chroot
            .arg(self.dir.path())
            .args(command)
            .env("PATH", "/usr/sbin:/usr/bin:/bin");
        chroot
    }

    pub fn run(&self, command: &[&str]) {
        run(&mut self.chroot(command));
    }

    /// Runs a command that must fail, and returns its error.
    pub fn refused(&self, command: &[&str]) -> String {
        let output = self.chroot(command).output().unwrap();
        assert!(!output.status.success(), "{command:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Unpacks an archive into `/unpacked`, without its first directory.
    pub fn unpack(&self, archive: &str) {
        let to = self.path("unpacked");
        fs::create_dir(&to).unwrap();
        output(
            "tar",
            &["--strip-components=1", "-C", &to.display().to_string(), "-xzf", archive],
        );
    }

    /// Runs dpkg on it. The C library is not a package here.
    pub fn dpkg(&self, arguments: &[&str]) {
        let root = format!("--root={}", self.dir.path().display());
        let log = format!("--log={}", self.path("dpkg.log").display());
        run(Command::new("dpkg")
            .args([&*root, &*log, "--force-depends"])
            .args(arguments));
    }

    /// Runs rpm on it. The C library is not a package here.
    pub fn rpm(&self, arguments: &[&str]) {
        let root = self.dir.path().display().to_string();
        run(Command::new("rpm").args(["--root", &root, "--nodeps"]).args(arguments));
    }
}
