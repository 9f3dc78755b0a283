//! What went wrong on the node, with verb and path.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

use nix::errno::Errno;

use super::{cgroups::Survivors, effects::EffectsBlocked, holders::Holders, mounts::Hanging, threads::NotDone};
use crate::model::{
    failure::{BUSY, Failure, HANGS, MOUNTED, OTHER, Reasoned},
    trace::Step,
};

/// Why an effect or a look failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The kernel refused.
    #[error("{}", std::io::Error::from(*.0))]
    Errno(Errno),
    /// The gate is shut.
    #[error(transparent)]
    Blocked(#[from] EffectsBlocked),
    /// It was not begun, or not brought to an end.
    #[error(transparent)]
    NotDone(#[from] NotDone),
    /// A mount is still there after everything was tried.
    #[error("still mounted")]
    StillMounted,
    /// Somebody uses what is mounted there.
    #[error("{0}")]
    Busy(Box<Holders>),
    /// The kernel has not come back from it.
    #[error("{0}")]
    Hangs(Box<Hanging>),
    /// It is the pod's by its path, and not in the pod's directory.
    #[error(
        "still mounted, and not in the pod's directory below --kubelet-root; was that directory renamed, or is --kubelet-root \
         not the kubelet's --root-dir? Give it back its name, or unmount this by hand"
    )]
    MountedElsewhere,
    /// It is a pod's by the shape of its path, which tells no UID; the pod that waits for it has no directory.
    #[error(
        "a volume of some pod is mounted here, and the directory of this pod is not there: was that renamed? Give it back its \
         name, or unmount this by hand"
    )]
    MountedForUnknownPod,
    /// A loop device outlives its end.
    #[error(
        "still there: somebody has it open or has mounted what is on it, and it goes with the last of them; fuser -v {0:?} tells who"
    )]
    LoopInUse(PathBuf),
    /// It is there although it ought to be gone.
    #[error("still there")]
    StillThere,
    /// What lies there is another mount or file system, which is never entered.
    #[error("another mount or file system begins here")]
    OtherFileSystem,
    /// A directory came back full as often as it was emptied.
    #[error("it fills up as fast as it is emptied")]
    KeepsFilling,
    /// Directories are nested deeper than anything honest.
    #[error("directories are nested too deep")]
    TooDeep,
    /// A name that could lead out of the directory.
    #[error("{0:?} is not a name within a directory")]
    BadName(OsString),
    /// What lies there is a link, a directory, a device or the like.
    #[error("it is no ordinary file")]
    NotRegularFile,
    /// A file is larger than anything honest.
    #[error("it is larger than {0} bytes")]
    TooLarge(u64),
    /// The kernel lacks `openat2`, without which removal is not safe.
    #[error("this kernel has no openat2 (Linux 5.6 or newer is needed)")]
    KernelTooOld,
    /// A kind of volume that this agent does not know how to take away.
    #[error(
        "volume {name:?} of plugin {plugin:?} is of a kind that is not handled: left alone; a kubelet can take it away, or the pod \
             goes on once it is unmounted and removed by hand"
    )]
    UnknownPlugin {
        /// The plugin's directory name.
        plugin: OsString,
        /// The volume's directory name.
        name: OsString,
    },
    /// Two volumes of the pod use one name, so their subPath mounts cannot be told apart.
    #[error(
        "it may belong to another volume of that name, which is not handled: left alone; the pod goes on once both are \
             unmounted and removed, by a kubelet or by hand"
    )]
    SharedName,
    /// What somebody else says of it.
    #[error("{0}")]
    Message(String),
    /// A driver does not take away a volume of which the mount table shows nothing.
    #[error("{why}; the mount table shows nothing of it")]
    DriverFailed {
        /// What the driver answered, or why it cannot be asked.
        why: String,
        /// Which driver has not done what with which volume.
        volume: String,
    },
    /// Processes that outlive SIGKILL.
    #[error("processes are left in it: {0}")]
    Processes(Survivors),
    /// systemd was asked, in vain.
    #[error("{0}")]
    Systemd(String),
    /// More of the same.
    #[error("and {0} more")]
    More(usize),
}

/// Paths in faults are cut to so many bytes.
const LONGEST: usize = 4096;

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

/// The kernel's error number, `EIO` where the library made the error up.
pub(crate) fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// The same of a call that goes by rustix.
pub(crate) fn errno_of(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

/// Head and tail of a path that is longer than anybody reads: directories may be nested without end.
fn cut(path: &Path) -> PathBuf {
    const MIDDLE: &[u8] = " … ".as_bytes();
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() <= LONGEST {
        return path.to_owned();
    }
    let half = (LONGEST - MIDDLE.len()) / 2;
    let parts = [&bytes[..half], MIDDLE, &bytes[bytes.len() - half..]];
    OsString::from_vec(parts.concat()).into()
}

// === impl Cause ===

impl From<Errno> for Cause {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::ENOSYS => Self::KernelTooOld,
            Errno::EXDEV => Self::OtherFileSystem,
            other => Self::Errno(other),
        }
    }
}

impl From<Hanging> for Cause {
    fn from(hanging: Hanging) -> Self {
        Self::Hangs(Box::new(hanging))
    }
}

// === impl Fault ===

impl Fault {
    /// `verb` on `path` failed because of `cause`.
    pub fn new(verb: &'static str, path: impl AsRef<Path>, cause: impl Into<Cause>) -> Self {
        Self {
            verb,
            path: cut(path.as_ref()),
            cause: cause.into(),
        }
    }

    /// Whether the gate was the cause, so that trying anything else now is in vain.
    pub fn is_blocked(&self) -> bool {
        matches!(self.cause, Cause::Blocked(_))
    }
}

impl Fault {
    /// The same as a failure of this step.
    pub fn failure(&self, step: Step) -> Failure {
        let held_by = match &self.cause {
            Cause::Busy(holders) => holders.processes.iter().map(|holder| holder.pid).collect(),
            _ => Vec::new(),
        };
        Failure {
            held_by,
            ..Failure::new(step, "", self)
        }
    }
}

impl Reasoned for Fault {
    /// The kernel's name of the error, where it has refused.
    fn reason(&self) -> std::borrow::Cow<'static, str> {
        match &self.cause {
            Cause::Errno(errno) => format!("{errno:?}").into(),
            Cause::Blocked(held) => held.reason(),
            Cause::NotDone(not_done) => not_done.reason(),
            Cause::Hangs(_) => HANGS.into(),
            Cause::Busy(_) | Cause::LoopInUse(_) => BUSY.into(),
            Cause::StillMounted | Cause::MountedElsewhere | Cause::MountedForUnknownPod => MOUNTED.into(),
            Cause::Processes(_) => "processes".into(),
            Cause::Systemd(_) => "systemd".into(),
            Cause::UnknownPlugin { .. } | Cause::SharedName => "unknown_plugin".into(),
            Cause::DriverFailed { .. } => "driver".into(),
            _ => OTHER.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_without_end_is_cut_to_its_head_and_its_tail() {
        let path = format!("/head/{}/tail", "d/".repeat(100_000));
        let fault = Fault::new("remove", path, Errno::EPERM);
        let text = fault.path.to_str().unwrap();
        assert!((4000..=4096).contains(&text.len()), "{}", text.len());
        assert!(
            text.starts_with("/head/d/") && text.contains(" … ") && text.ends_with("/d//tail"),
            "{text}"
        );
        let whole = "x".repeat(4096);
        assert_eq!(Fault::new("remove", &whole, Errno::EPERM).path, Path::new(&whole));
    }

    #[test]
    fn a_hostile_path_stays_on_one_line_of_the_log() {
        let fault = Fault::new("remove", "/pods/a\nERROR forged", Errno::EPERM);
        let line = fault.to_string();
        assert!(!line.contains('\n'), "{line}");
        assert!(line.starts_with("cannot remove \"/pods/a\\nERROR forged\": "), "{line}");
    }

    #[test]
    fn a_failure_is_counted_under_the_kernels_name_of_it_or_a_word_of_ours() {
        let fault = |cause| Fault {
            verb: "unmount",
            path: "/a/b".into(),
            cause,
        };
        for (cause, word) in [
            (Cause::Errno(Errno::EBUSY), "EBUSY"),
            (Cause::StillMounted, "mounted"),
            (Cause::Systemd("no".to_owned()), "systemd"),
            (Cause::TooDeep, "other"),
        ] {
            assert_eq!(fault(cause).failure(Step::Volumes).reason, word);
        }
        assert_eq!(Failure::new(Step::Status, "", "not seen").reason, "other");
    }
}
