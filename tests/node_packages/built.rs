//! The packages, built once for all claims, from the program that is tested.

use std::{collections::BTreeSet, path::PathBuf, process::Command, sync::OnceLock};

use tempfile::TempDir;

/// Two versions of each package: `now`, and `next`, to which it is upgraded.
pub struct Built {
    dir: TempDir,
}

/// Runs a program, which must succeed, and returns what it prints.
pub fn output(program: &str, arguments: &[&str]) -> String {
    run(Command::new(program).args(arguments))
}

pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out
}

/// Paths of a listing whose lines end with the path. Directories are left out.
fn files(listing: &str) -> BTreeSet<String> {
    let lines = listing.lines().filter(|line| !line.starts_with('d'));
    let paths = lines.map(|line| line.split(" -> ").next().unwrap().split_whitespace().last().unwrap());
    paths.map(|path| path.trim_start_matches('.').to_owned()).collect()
}

impl Built {
    pub fn get() -> &'static Self {
        static BUILT: OnceLock<Built> = OnceLock::new();
        BUILT.get_or_init(|| {
            let built = Self {
                dir: tempfile::tempdir().unwrap(),
            };
            for version in ["now", "next"] {
                built.build("deb.sh", version, &["--fast"]);
                built.build("rpm.sh", version, &["--fast"]);
            }
            built.build("tarball.sh", "now", &[]);
            built
        })
    }

    fn build(&self, script: &str, version: &str, arguments: &[&str]) {
        let script = format!("{}/packaging/{script}", env!("CARGO_MANIFEST_DIR"));
        let version = Self::version(version);
        run(Command::new(script)
            .args(arguments)
            .env("PROGRAM", env!("CARGO_BIN_EXE_pod-teardown"))
            .env("VERSION", version)
            .env("OUT", self.dir.path())
            .env_remove("TARGET"));
    }

    /// `next` is the later one.
    fn version(name: &str) -> &'static str {
        if name == "next" { "0.0.2" } else { "0.0.1" }
    }

    /// The only file whose name begins and ends like this.
    fn find(&self, start: &str, end: &str) -> String {
        let entries = self.dir.path().read_dir().unwrap();
        let paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        let is_it = |path: &&PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with(start) && name.ends_with(end)
        };
        let path = paths.iter().find(is_it);
        path.unwrap_or_else(|| panic!("no {start}…{end} in {paths:?}"))
            .display()
            .to_string()
    }

    pub fn deb(&self, package: &str, version: &str) -> String {
        self.find(&format!("{package}_{}_", Self::version(version)), ".deb")
    }

    pub fn rpm(&self, package: &str, version: &str) -> String {
        self.find(&format!("{package}-{}-", Self::version(version)), ".rpm")
    }

    pub fn tarball(&self, version: &str) -> String {
        self.find(&format!("pod-teardown-{}-", Self::version(version)), ".tar.gz")
    }

    pub fn deb_files(&self, package: &str) -> BTreeSet<String> {
        files(&output("dpkg-deb", &["--contents", &self.deb(package, "next")]))
    }

    pub fn rpm_files(&self, package: &str) -> BTreeSet<String> {
        files(&output("rpm", &["-qplv", &self.rpm(package, "next")]))
    }

    /// Those that the tarball installs, as the packages name them.
    pub fn tarball_files(&self) -> BTreeSet<String> {
        let all = files(&output("tar", &["-tvzf", &self.tarball("now")]));
        all.iter()
            .filter_map(|path| Some(path.split_once("/files")?.1.to_owned()))
            .collect()
    }
}
