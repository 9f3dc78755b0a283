//! Removes the logs of a pod: its directory, and the links to it for log collectors.

use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use super::{
    dirs::Dir,
    effects::{Effects, Outcome},
    fault::{BadPart, Fault, errno},
};

/// The kubelet truncates a link's name before its suffix, to fit a file name.
const MAX_LINK_STEM: usize = 251;

/// The log directory of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodLogs {
    root: PathBuf,
    dir: String,
    link_prefix: String,
}

// === impl PodLogs ===

impl PodLogs {
    /// Log directory of one pod below `root`, the configured `podLogsDir`.
    pub fn new(root: &Path, namespace: &str, name: &str, uid: &str) -> Result<Self, BadPart> {
        for part in [namespace, name, uid] {
            if !is_part(part) {
                return Err(BadPart(part.to_owned(), "log directory"));
            }
        }
        Ok(Self {
            root: root.to_owned(),
            dir: format!("{namespace}_{name}_{uid}"),
            link_prefix: format!("{name}_{namespace}_"),
        })
    }

    /// The pod's log directory.
    pub fn path(&self) -> PathBuf {
        self.root.join(&self.dir)
    }

    /// Removes the pod's links in `links`, such as `/var/log/containers`, then the directory. A missing directory is no
    /// error.
    pub async fn remove(&self, links: &Path, effects: &Effects) -> Result<Outcome, Vec<Fault>> {
        let (logs, links) = (self.clone(), links.to_owned());
        let removed = effects.run_blocking(move |effects| logs.remove_blocking(&links, effects));
        let removed = removed.await;
        removed.unwrap_or_else(|why| Err(vec![Fault::new("remove", self.path(), why)]))
    }

    fn remove_blocking(&self, links: &Path, effects: &Effects) -> Result<Outcome, Vec<Fault>> {
        let root = resolved(&self.root)?;
        let links = self.remove_links(links, root.as_deref(), effects);
        let dir = match root.as_deref().map(Dir::open).transpose() {
            Ok(Some(Some(root))) => root.remove_tree(self.dir.as_ref(), effects),
            Ok(_) => Ok(Outcome::Nothing),
            Err(fault) => Err(vec![fault]),
        };
        match (links, dir) {
            (Ok(links), Ok(dir)) => Ok(links.and(dir)),
            (links, dir) => Err([links.err(), dir.err()].into_iter().flatten().flatten().collect()),
        }
    }

    /// Removes only links with the pod's name that point into the pod's directory: a pod with the same name has its own.
    fn remove_links(&self, links: &Path, root: Option<&Path>, effects: &Effects) -> Result<Outcome, Vec<Fault>> {
        let Some(links) = resolved(links)?.as_deref().map(Dir::open).transpose()?.flatten() else {
            return Ok(Outcome::Nothing);
        };
        let roots = [&*self.root].into_iter().chain(root);
        let targets: Vec<PathBuf> = roots.map(|root| root.join(&self.dir)).collect();
        let names = links.names()?.into_iter().filter(|name| self.may_be_link(name));
        let removed = names.map(|name| match links.link_target(&name)? {
            Some(target) if targets.iter().any(|dir| target.starts_with(dir)) => links.remove_file(&name, effects),
            _ => Ok(Outcome::Nothing),
        });
        let (outcome, faults) = Outcome::collect(removed);
        if faults.is_empty() { Ok(outcome) } else { Err(faults) }
    }

    fn may_be_link(&self, name: &OsStr) -> bool {
        let prefix = self.link_prefix.as_bytes();
        let prefix = &prefix[..prefix.len().min(MAX_LINK_STEM)];
        name.as_bytes()
            .strip_suffix(b".log")
            .is_some_and(|stem| stem.starts_with(prefix))
    }
}

/// The configured directories may be below symlinks; entries in them are opened without following any. `None` if missing.
fn resolved(path: &Path) -> Result<Option<PathBuf>, Fault> {
    match path.canonicalize() {
        Ok(path) => Ok(Some(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Fault::new("resolve", path, errno(&error))),
    }
}

/// Names in Kubernetes contain neither `_` nor `/`. `.` and `..` cannot result, but are refused anyway.
fn is_part(part: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    (1..=253).contains(&part.len()) && part.bytes().all(allowed) && part != "." && part != ".."
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, fs, os::unix::fs::symlink};

    use super::*;

    async fn remove(logs: &PodLogs, links: &Path) -> Result<Outcome, Vec<Fault>> {
        logs.remove(links, &Effects::ungated()).await
    }

    /// The name of the kubelet's link to a container's log.
    fn link_name(pod: &str, namespace: &str, container: &str, id: &str) -> OsString {
        let mut name = format!("{pod}_{namespace}_{container}-{id}");
        name.truncate(MAX_LINK_STEM);
        format!("{name}.log").into()
    }

    #[test]
    fn parts_of_other_directory_names_are_refused() {
        for bad in ["", ".", "..", "a/b", "../x", "a_b", "a\n", "a\0", &"a".repeat(254)] {
            for (ns, name, uid) in [(bad, "n", "u"), ("ns", bad, "u"), ("ns", "n", bad)] {
                assert_eq!(
                    PodLogs::new(Path::new("/logs"), ns, name, uid),
                    Err(BadPart(bad.to_owned(), "log directory"))
                );
            }
        }
        let logs = PodLogs::new(Path::new("/logs"), "ns", "web-0.x", "12-ab").unwrap();
        assert_eq!(logs.path(), Path::new("/logs/ns_web-0.x_12-ab"));
    }

    #[tokio::test]
    async fn directory_and_links_are_removed_but_not_those_of_a_pod_with_the_same_name() {
        let temp = tempfile::tempdir().unwrap();
        let (root, links) = (temp.path().join("pods"), temp.path().join("containers"));
        fs::create_dir_all(root.join("ns_web_old/app")).unwrap();
        fs::create_dir_all(root.join("ns_web_new/app")).unwrap();
        fs::create_dir_all(&links).unwrap();
        fs::write(root.join("ns_web_old/app/0.log"), "x").unwrap();
        let id = "a".repeat(64);
        let (old, new) = (link_name("web", "ns", "app", &id), link_name("web", "ns", "app", "b"));
        symlink(root.join("ns_web_old/app/0.log"), links.join(&old)).unwrap();
        symlink(root.join("ns_web_new/app/0.log"), links.join(&new)).unwrap();
        symlink(root.join("ns_web_old-other/app/0.log"), links.join("web_ns_c-1.log")).unwrap();
        symlink(root.join("ns_web_old/app/0.log"), links.join("not-the-pods.log")).unwrap();
        fs::write(links.join("web_ns_file-1.log"), "no link").unwrap();

        let logs = PodLogs::new(&root, "ns", "web", "old").unwrap();
        assert_eq!(remove(&logs, &links).await, Ok(Outcome::Done));
        assert!(!logs.path().exists() && root.join("ns_web_new/app").exists());
        let mut left: Vec<_> = fs::read_dir(&links)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                OsStr::new("not-the-pods.log"),
                &new,
                OsStr::new("web_ns_c-1.log"),
                OsStr::new("web_ns_file-1.log")
            ]
        );
        assert_eq!(remove(&logs, &links).await, Ok(Outcome::Nothing));
    }

    #[tokio::test]
    async fn links_with_truncated_names_are_found() {
        let temp = tempfile::tempdir().unwrap();
        // The second is too long for a log directory, and for anything of its name but the cut link.
        for length in [180, 253] {
            let name = "p".repeat(length);
            let link = link_name(&name, "ns", &"c".repeat(63), &"1".repeat(64));
            assert_eq!(link.len(), 255);
            let logs = PodLogs::new(temp.path(), "ns", &name, "u").unwrap();
            symlink(logs.path().join("app/0.log"), temp.path().join(&link)).unwrap();
            assert_eq!(remove(&logs, temp.path()).await, Ok(Outcome::Done));
            assert!(fs::symlink_metadata(temp.path().join(&link)).is_err());
        }
    }

    #[tokio::test]
    async fn log_directory_that_is_a_link_is_unlinked_but_its_target_is_kept() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("outside")).unwrap();
        fs::write(temp.path().join("outside/data"), "precious").unwrap();
        symlink("outside", temp.path().join("ns_web_u")).unwrap();
        let logs = PodLogs::new(temp.path(), "ns", "web", "u").unwrap();
        assert_eq!(remove(&logs, Path::new("/no/such/links")).await, Ok(Outcome::Done));
        assert_eq!(
            fs::read_to_string(temp.path().join("outside/data")).unwrap(),
            "precious"
        );
    }

    #[tokio::test]
    async fn missing_log_directories_are_no_error() {
        let logs = PodLogs::new(Path::new("/no/such/logs"), "ns", "web", "u").unwrap();
        assert_eq!(remove(&logs, Path::new("/no/such/links")).await, Ok(Outcome::Nothing));
    }
}
