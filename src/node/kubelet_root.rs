//! The kubelet's root directory, resolved once, so that paths below it can be compared as text.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::words::io_error;

/// The directory that holds one directory for each pod.
const PODS: &str = "pods";

/// The kubelet's root directory and its pods directory, both without symlinks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeletRoot {
    given: PathBuf,
    root: PathBuf,
    pods: PathBuf,
}

/// The kubelet's root directory does not exist or cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{path:?} cannot be resolved: {}", io_error(source))]
pub struct UnresolvedRoot {
    path: PathBuf,
    source: io::Error,
}

// === impl KubeletRoot ===

impl KubeletRoot {
    /// Resolves `root` and its `pods`, each of which may be a mount point or a symlink.
    pub fn resolve(root: &Path) -> Result<Self, UnresolvedRoot> {
        let resolve = |path: &Path| {
            path.canonicalize().map_err(|source| UnresolvedRoot {
                path: path.to_owned(),
                source,
            })
        };
        let resolved = resolve(root)?;
        let pods = resolve(&resolved.join(PODS))?;
        Ok(Self {
            given: root.to_owned(),
            root: resolved,
            pods,
        })
    }

    /// The path as the kubelet writes it, for a path below this directory without symlinks. A driver in a container may have the
    /// directory there alone.
    pub fn as_given(&self, path: &Path) -> PathBuf {
        let below = |dir: &Path, given: PathBuf| Some(given.join(path.strip_prefix(dir).ok()?));
        below(&self.pods, self.given.join(PODS))
            .or_else(|| below(&self.root, self.given.clone()))
            .unwrap_or_else(|| path.to_owned())
    }

    /// The configured path.
    pub fn given(&self) -> &Path {
        &self.given
    }

    /// The root directory.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// The directory that holds one directory for each pod.
    pub fn pods(&self) -> &Path {
        &self.pods
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    impl KubeletRoot {
        /// An existing directory without symlinks.
        pub fn at(root: impl Into<PathBuf>) -> Self {
            let root = root.into();
            Self {
                pods: root.join(PODS),
                given: root.clone(),
                root,
            }
        }
    }

    #[test]
    fn links_above_and_at_pods_are_resolved() {
        let temp = tempfile::tempdir().unwrap();
        let real = temp.path().canonicalize().unwrap();
        fs::create_dir_all(real.join("data/kubelet")).unwrap();
        fs::create_dir_all(real.join("disk/pods")).unwrap();
        symlink("data", real.join("link")).unwrap();
        symlink("../../disk/pods", real.join("data/kubelet/pods")).unwrap();
        let root = KubeletRoot::resolve(&real.join("link/kubelet")).unwrap();
        assert_eq!(
            (root.path(), root.pods()),
            (&*real.join("data/kubelet"), &*real.join("disk/pods"))
        );
        for (path, given) in [
            ("disk/pods/u/volumes/v", "link/kubelet/pods/u/volumes/v"),
            ("data/kubelet/plugins/p", "link/kubelet/plugins/p"),
            ("disk/other", "disk/other"),
        ] {
            assert_eq!(root.as_given(&real.join(path)), real.join(given));
        }
    }

    #[test]
    fn missing_directory_is_named() {
        let error = KubeletRoot::resolve(Path::new("/no/such/kubelet")).unwrap_err();
        assert!(error.to_string().contains("\"/no/such/kubelet\""), "{error}");
    }
}
