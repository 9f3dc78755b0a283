//! Errors of operations on the node, with verb and path.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
};

use nix::errno::Errno;

use super::{
    cgroups::survivor::Survivors,
    holders::holder::Holders,
    mounts::{cover::Cover, hanging::Hanging},
    threads::NotDone,
};
use crate::{
    model::{
        blocked::Blocked,
        failure::{BUSY, Failure, HANGS, MOUNTED, OTHER, Reasoned},
        trace::Step,
    },
    words::{unmount_commands, without_error_codes},
};

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// A system call failed.
    #[error("{}", without_error_codes(&std::io::Error::from(*.0).to_string()))]
    Errno(Errno),
    /// The gate is shut.
    #[error("blocked: {0}")]
    Blocked(#[from] Blocked),
    /// The work was not started or not completed.
    #[error(transparent)]
    NotDone(#[from] NotDone),
    /// A mount still exists after all attempts.
    #[error("still mounted")]
    StillMounted,
    /// A mount still exists, and no path leads to it.
    #[error("still mounted, and hidden: {0}")]
    Hidden(Box<Cover>),
    /// Processes or nested mounts use the file system.
    #[error("{0}")]
    Busy(Box<Holders>),
    /// The system call has not returned.
    #[error("{0}")]
    Hangs(Box<Hanging>),
    /// The mount's path contains the pod's UID, but is outside of the pod's directory.
    #[error(
        "still mounted, and not in the pod's directory below --kubelet-root; was that directory renamed, or is --kubelet-root \
         not the kubelet's --root-dir? Rename it back, or unmount this path by hand"
    )]
    MountedElsewhere,
    /// The mount's path looks like a pod's volume but contains no UID, and the pod that waits has no directory.
    #[error(
        "a pod's volume is mounted here, and the directory of this pod does not exist: was it renamed? Rename it back, or \
         unmount this path by hand"
    )]
    MountedForUnknownPod,
    /// A loop device still exists after its detachment.
    #[error(
        "still attached: it is open or mounted, and is detached when its last user closes it; fuser -v {0:?} shows the users"
    )]
    LoopInUse(PathBuf),
    /// It still exists after its removal.
    #[error("it still exists")]
    StillThere,
    /// Another mount or file system, which is never entered.
    #[error("another mount or file system begins here")]
    OtherFileSystem,
    /// A directory was filled again as often as it was emptied.
    #[error("other processes fill or move it as fast as it is emptied")]
    KeepsFilling,
    /// Directories are nested deeper than any legitimate ones.
    #[error("directories are nested too deep")]
    TooDeep,
    /// A name that could lead out of the directory.
    #[error("{0:?} is not a name within a directory")]
    BadName(OsString),
    /// A link, a directory, a device or the like.
    #[error("it is not a regular file")]
    NotRegularFile,
    /// A file is larger than any legitimate one.
    #[error("it is larger than {0} bytes")]
    TooLarge(u64),
    /// The kernel lacks `openat2`, which safe removal needs.
    #[error("this kernel has no openat2 (Linux 5.6 or newer is needed)")]
    KernelTooOld,
    /// A volume plugin that the agent does not support.
    #[error(
        "volume {name:?} of plugin {plugin:?} is not supported and is left alone; a kubelet can remove it, or the pod \
             continues once it is unmounted and removed by hand"
    )]
    UnknownPlugin {
        /// The plugin's directory name.
        plugin: OsString,
        /// The volume's directory name.
        name: OsString,
    },
    /// Two volumes of the pod use one name, so their subPath mounts cannot be distinguished.
    #[error(
        "it may belong to another volume with that name, which is not supported; the pod continues once both are \
             unmounted and removed, by a kubelet or by hand"
    )]
    SharedName,
    /// A message from another component.
    #[error("{0}")]
    Message(String),
    /// A driver fails to tear down a volume that is not mounted, or cannot be called.
    #[error("{why}; {}", without_driver(mounted))]
    DriverFailed {
        /// The driver's answer, or why it cannot be called.
        why: String,
        /// Driver and handle of the volume.
        volume: String,
        /// Its mounts, in the order of their unmount.
        mounted: Vec<PathBuf>,
    },
    /// A directory is removed only if it is empty.
    #[error("{0}")]
    NotEmpty(String),
    /// Processes that survived SIGKILL.
    #[error("processes remain in it: {0}")]
    Processes(Survivors),
    /// An error from systemd.
    #[error("{0}")]
    Systemd(String),
    /// Further faults.
    #[error("and {0} more")]
    More(usize),
}

/// What is left to do without the driver.
fn without_driver(mounted: &[PathBuf]) -> String {
    match unmount_commands(mounted) {
        commands if commands.is_empty() => "the mount table shows nothing of it".to_owned(),
        commands => format!("if its driver never returns, unmount it: {commands}"),
    }
}

/// Maximum length of a path in a fault, in bytes.
const MAX_PATH: usize = 4096;

/// A failed operation on the node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {verb} {path:?}: {cause}")]
pub struct Fault {
    /// What was attempted.
    pub verb: &'static str,
    /// The target.
    pub path: PathBuf,
    /// Why it failed.
    pub cause: Cause,
    /// PIDs of processes that have to exit first, as far as known.
    pub holders: Vec<i32>,
}

/// A text that may not be part of a name, since it would lead to another directory; and what the name is of.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be part of the name of a {1}")]
pub struct BadPart(pub String, pub &'static str);

/// The error number; `EIO` if the error is not from the kernel.
pub(crate) fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// The error number of a rustix call.
pub(crate) fn errno_of(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}

/// Head and tail of a path that is too long for a message. Directories may be nested without limit.
fn shorten(path: &Path) -> PathBuf {
    const MIDDLE: &[u8] = " … ".as_bytes();
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() <= MAX_PATH {
        return path.to_owned();
    }
    let half = (MAX_PATH - MIDDLE.len()) / 2;
    let parts = [&bytes[..half], MIDDLE, &bytes[bytes.len() - half..]];
    OsString::from_vec(parts.concat()).into()
}

// === impl Cause ===

/// Work that continues after a fault returns all of them.
impl From<Fault> for Vec<Fault> {
    fn from(fault: Fault) -> Self {
        vec![fault]
    }
}

impl From<Errno> for Cause {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::ENOSYS => Self::KernelTooOld,
            Errno::EXDEV => Self::OtherFileSystem,
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
            path: shorten(path.as_ref()),
            cause: cause.into(),
            holders: Vec::new(),
        }
    }

    /// The same fault, with processes that have to exit first.
    #[must_use]
    pub fn held_by(mut self, pids: impl IntoIterator<Item = i32>) -> Self {
        self.holders.extend(pids);
        self
    }

    /// Whether the gate blocked the operation, so that other operations would fail as well.
    pub fn is_blocked(&self) -> bool {
        matches!(self.cause, Cause::Blocked(_))
    }

    /// The error number of the system call that failed.
    pub fn errno(&self) -> Option<Errno> {
        match self.cause {
            Cause::Errno(errno) => Some(errno),
            _ => None,
        }
    }

    /// Converts it to a failure of this step.
    pub fn failure(&self, step: Step) -> Failure {
        Failure::new(step, "", self)
    }
}

impl Reasoned for BadPart {}

impl Reasoned for Fault {
    /// The name of the error number if there is one.
    fn reason(&self) -> std::borrow::Cow<'static, str> {
        match &self.cause {
            Cause::Errno(errno) => format!("{errno:?}").into(),
            Cause::Blocked(blocked) => blocked.reason(),
            Cause::NotDone(not_done) => not_done.reason(),
            Cause::Hangs(_) => HANGS.into(),
            Cause::Busy(_) | Cause::LoopInUse(_) => BUSY.into(),
            Cause::StillMounted | Cause::Hidden(_) | Cause::MountedElsewhere | Cause::MountedForUnknownPod => {
                MOUNTED.into()
            }
            Cause::Processes(_) => "processes".into(),
            Cause::Systemd(_) => "systemd".into(),
            Cause::UnknownPlugin { .. } | Cause::SharedName => "unknown_plugin".into(),
            Cause::DriverFailed { .. } => "driver".into(),
            Cause::NotEmpty(_) => "ENOTEMPTY".into(),
            _ => OTHER.into(),
        }
    }

    fn holders(&self) -> Vec<i32> {
        let mut all = self.holders.clone();
        match &self.cause {
            Cause::Busy(holders) => all.extend(holders.pids()),
            Cause::Processes(survivors) => all.extend(survivors.named.iter().map(|survivor| survivor.pid)),
            _ => {}
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_path_is_shortened_to_head_and_tail() {
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
    fn path_with_newline_stays_on_one_log_line() {
        let fault = Fault::new("remove", "/pods/a\nERROR forged", Errno::EPERM);
        let line = fault.to_string();
        assert!(!line.contains('\n'), "{line}");
        assert!(line.starts_with("cannot remove \"/pods/a\\nERROR forged\": "), "{line}");
    }

    #[test]
    fn failures_are_counted_by_error_name_or_reason() {
        let fault = |cause| Fault {
            verb: "unmount",
            path: "/a/b".into(),
            cause,
            holders: Vec::new(),
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
