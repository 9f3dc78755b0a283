//! What went wrong on the node, with verb and path.

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use rustix::io::Errno;

use super::{effects::Held, threads::NotDone};

/// Why an effect or a look failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The kernel refused.
    #[error("{0}")]
    Errno(Errno),
    /// The gate is shut.
    #[error(transparent)]
    Held(#[from] Held),
    /// It was not begun, or not brought to an end.
    #[error(transparent)]
    NotDone(#[from] NotDone),
    /// A mount is still there after everything was tried.
    #[error("still mounted")]
    StillMounted,
    /// A kubelet with another root directory has mounted it.
    #[error("still mounted, and not below --kubelet-root; is that the kubelet's --root-dir?")]
    MountedElsewhere,
    /// It is there although it ought to be gone.
    #[error("still there")]
    StillThere,
    /// What lies there is another mount or file system, which is never entered.
    #[error("another mount or file system begins here")]
    OtherFileSystem,
    /// A directory came back full as often as it was emptied.
    #[error("it fills up as fast as it is emptied")]
    KeepsFilling,
    /// A directory was moved away while it was being emptied.
    #[error("it was moved while it was being emptied")]
    Moved,
    /// Directories are nested deeper than anything honest.
    #[error("directories are nested too deep")]
    TooDeep,
    /// A name that could lead out of the directory.
    #[error("{0:?} is not a name within a directory")]
    BadName(OsString),
    /// The kernel lacks `openat2`, without which removal is not safe.
    #[error("this kernel has no openat2 (Linux 5.6 or newer is needed)")]
    KernelTooOld,
    /// A kind of volume that this agent does not know how to take away.
    #[error("volume {name:?} of plugin {plugin:?} is of a kind that is not handled: left alone")]
    UnknownPlugin {
        /// The plugin's directory name.
        plugin: OsString,
        /// The volume's directory name.
        name: OsString,
    },
    /// Two volumes of the pod use one name, so their subPath mounts cannot be told apart.
    #[error("it may belong to another volume of that name, which is not handled: left alone")]
    SharedName,
    /// Processes that outlive SIGKILL.
    #[error("processes are left in it: {0}")]
    Processes(Pids),
    /// More of the same.
    #[error("and {0} more")]
    More(usize),
}

/// Process ids, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pids(pub Vec<i32>);

/// Something that could not be done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {verb} {path:?}: {cause}")]
pub struct Fault {
    /// What was tried.
    pub verb: &'static str,
    /// What it was tried on.
    pub path: PathBuf,
    /// Why it failed.
    pub cause: Cause,
}

// === impl Cause ===

impl From<Errno> for Cause {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOSYS => Self::KernelTooOld,
            Errno::XDEV => Self::OtherFileSystem,
            other => Self::Errno(other),
        }
    }
}

// === impl Fault ===

impl Fault {
    /// `verb` on `path` failed because of `cause`.
    pub fn new(verb: &'static str, path: impl AsRef<Path>, cause: impl Into<Cause>) -> Self {
        Self {
            verb,
            path: path.as_ref().to_owned(),
            cause: cause.into(),
        }
    }

    /// Whether the gate was the cause, so that trying anything else now is in vain.
    pub fn is_held(&self) -> bool {
        matches!(self.cause, Cause::Held(_))
    }
}

// === impl Pids ===

impl fmt::Display for Pids {
    /// The first few suffice to find the culprit.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, pid) in self.0.iter().take(8).enumerate() {
            write!(f, "{}{pid}", if i == 0 { "" } else { " " })?;
        }
        if self.0.len() > 8 {
            write!(f, " and {} more", self.0.len() - 8)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_path_stays_on_one_line_of_the_log() {
        let fault = Fault::new("remove", "/pods/a\nERROR forged", Errno::PERM);
        let line = fault.to_string();
        assert!(!line.contains('\n'), "{line}");
        assert!(line.starts_with("cannot remove \"/pods/a\\nERROR forged\": "), "{line}");
    }

    #[test]
    fn only_the_first_processes_are_named() {
        assert_eq!(Pids((1..=10).collect()).to_string(), "1 2 3 4 5 6 7 8 and 2 more");
        assert_eq!(Pids(vec![5]).to_string(), "5");
    }
}
