//! Kubelet processes that work on the same pods as we: while there is one, nothing may be touched.

use std::{
    ffi::OsStr,
    fmt, fs,
    io::{self, Read as _},
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use rustix::{
    fd::OwnedFd,
    fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2},
    io::Errno,
};

use super::{fault, kubelet_root::KubeletRoot, lock::readable};

const NAME: &str = "kubelet";
const DEFAULT_ROOT: &str = "/var/lib/kubelet";
/// The root of this machine's file system: the agent works in the host's mount namespace, or refuses to run.
const MACHINES: &str = "/";
const ROOT_FLAG: &[u8] = b"root-dir";
const ENDPOINT_FLAG: &[u8] = b"container-runtime-endpoint";
/// Programs that hold a kubelet or start one, each with the arguments that make it do so; without any it always does.
const HOLDERS: [(&str, &[&[u8]]); 10] = [
    ("kubelite", &[]),
    ("k3s-server", &[]),
    ("k3s-agent", &[]),
    ("k3s", &[b"server", b"agent"]),
    ("rke2", &[b"server", b"agent"]),
    ("k0s", &[b"worker", b"controller"]),
    ("microshift", &[b"run"]),
    ("hyperkube", &[b"kubelet"]),
    ("edgecore", &[]),
    ("edged", &[]),
];
/// How holders are told what to tell their kubelet.
const HOLDERS_FLAG: &[u8] = b"--kubelet-arg=";

/// A kubelet that works, or may work, on our pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeletProcess {
    /// Its process id.
    pub pid: i32,
    /// Its command line.
    pub command: String,
    /// Why it counts.
    pub why: Why,
    /// Whether it is a program that holds a kubelet among other things.
    pub holds: bool,
}

/// Why a kubelet counts as one of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// Its directory is ours.
    SameDirectory,
    /// It has another directory on this machine, and the same runtime as far as it says: it may be this node's.
    SameMachine,
    /// Its directory could not be looked at: better one too many.
    Unreadable(Errno),
    /// It holds a kubelet on this machine whose directory is not on its command line: better one too many.
    Unsaid,
}

/// What a process is by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Kubelet,
    /// By these arguments, if they are not none.
    Holder(&'static [&'static [u8]]),
}

type File = (u64, u64);

/// What tells whether a kubelet works on our pods.
#[derive(Debug, Clone, Copy)]
pub struct Ours<'a> {
    /// Our kubelet's directory.
    pub root: &'a KubeletRoot,
    /// Our runtime's socket.
    pub runtime: &'a Path,
}

/// All kubelets that count, from the files of `proc`, by pid. It reads a file of every process: any of them may have
/// become a kubelet by exec. An error where none was seen and not all could be looked at, as without descriptors or memory.
pub fn find(proc: &Path, ours: Ours<'_>) -> io::Result<Vec<KubeletProcess>> {
    let (mut found, mut unseen) = (Vec::new(), None);
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        match with_pid(proc, pid, ours) {
            Ok(it) => found.extend(it),
            Err(error) => unseen = Some(error),
        }
    }
    found.sort_by_key(|process| process.pid);
    match unseen {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// The process with this pid, if it is a kubelet that counts.
pub fn with_pid(proc: &Path, pid: i32, ours: Ours<'_>) -> io::Result<Option<KubeletProcess>> {
    let dir = proc.join(pid.to_string());
    let Some(kind) = kind(&dir)? else { return Ok(None) };
    let Some(why) = why(kind, &dir, ours) else {
        return Ok(None);
    };
    let command = readable(fs::read(dir.join("cmdline")).unwrap_or_default());
    let holds = kind != Kind::Kubelet;
    Ok(Some(KubeletProcess {
        pid,
        command,
        why,
        holds,
    }))
}

/// By its name. A process that is gone by now is none; one whose name cannot be read may be any.
fn kind(dir: &Path) -> io::Result<Option<Kind>> {
    // A name has 15 bytes and a newline at most. Not `fs::read`, which asks for the size and the end, too.
    let mut name = [0; 32];
    let read = fs::File::open(dir.join("comm")).and_then(|mut file| file.read(&mut name));
    let read = match read {
        Ok(read) => read,
        Err(error) if matches!(fault::errno(&error), Errno::NOENT | Errno::SRCH) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Ok(name) = std::str::from_utf8(name[..read].trim_ascii_end()) else {
        return Ok(None);
    };
    // Also `kubelet-v1.36.3`, `kubelet-amd64`, `kubelet.real`, `.kubelet-wrapped`: what is no kubelet after all has seldom
    // a directory of one.
    if name.trim_start_matches('.').starts_with(NAME) {
        return Ok(Some(Kind::Kubelet));
    }
    let holder = HOLDERS.iter().find(|(holder, _)| name == *holder);
    Ok(holder.map(|(_, by)| Kind::Holder(by)))
}

/// Why the kubelet with this directory in procfs counts; `None` if it works elsewhere or has ended.
fn why(kind: Kind, dir: &Path, ours: Ours<'_>) -> Option<Why> {
    match works_here(kind, dir, ours) {
        Ok(None) => None,
        Ok(Some(Why::Unsaid)) | Err(_) if has_ended(dir) => None,
        Ok(why) => why,
        Err(errno) => Some(Why::Unreadable(errno)),
    }
}

fn works_here(kind: Kind, dir: &Path, ours: Ours<'_>) -> Result<Option<Why>, Errno> {
    let arguments = fs::read(dir.join("cmdline")).map_err(|error| fault::errno(&error))?;
    let their_root = match (kind, path_flag(&arguments, ROOT_FLAG)) {
        (Kind::Holder(by), _) if !holds(by, &arguments) => return Ok(None),
        (Kind::Holder(_), None) => return unsaid(dir, ours.root),
        (Kind::Holder(_) | Kind::Kubelet, Some(said)) => said,
        (Kind::Kubelet, None) => DEFAULT_ROOT.into(),
    };
    if is_ours(&base(dir, &their_root)?, &their_root, ours.root)? {
        return Ok(Some(Why::SameDirectory));
    }
    // Whose --root-dir is not our --kubelet-root may be this node's kubelet all the same, and we be told wrongly.
    let here = file(&dir.join("root")).is_some_and(|theirs| Some(theirs) == file(MACHINES.as_ref()));
    let same_runtime = path_flag(&arguments, ENDPOINT_FLAG).is_none_or(|endpoint| {
        let text = endpoint.as_os_str().as_bytes();
        let path = Path::new(OsStr::from_bytes(text.strip_prefix(b"unix://").unwrap_or(text)));
        path == ours.runtime || file(path).is_some_and(|theirs| Some(theirs) == file(ours.runtime))
    });
    let counts = kind == Kind::Kubelet && here && same_runtime;
    Ok(counts.then_some(Why::SameMachine))
}

/// A holder that does not say where. In this machine's root file system its kubelet may have any directory; in another one,
/// as of a container or a snap, ours is there under the kubelet's name for it or under ours, or it is another node's.
fn unsaid(dir: &Path, ours: &KubeletRoot) -> Result<Option<Why>, Errno> {
    let (machines, root) = (Path::new(MACHINES), base(dir, MACHINES.as_ref())?);
    if file(machines).is_none_or(|here| identity(&root, machines) == Ok(here)) {
        return Ok(Some(Why::Unsaid));
    }
    for name in [Path::new(DEFAULT_ROOT), ours.path(), ours.given()] {
        // What the operator wrote may be relative to where the agent was started.
        if is_ours(&root, &machines.join(name), ours)? {
            return Ok(Some(Why::SameDirectory));
        }
    }
    Ok(None)
}

/// Whether a kubelet's root directory, looked up from there, is ours.
fn is_ours(base: &OwnedFd, their_root: &Path, ours: &KubeletRoot) -> Result<bool, Errno> {
    let (Some(our_root), Some(our_pods)) = (file(ours.path()), file(ours.pods())) else {
        return Err(Errno::NOENT);
    };
    match identity(base, &their_root.join("pods")) {
        Ok(pods) => Ok(pods == our_pods),
        // Just starting, and not ours unless it starts in our directory.
        Err(Errno::NOENT | Errno::NOTDIR) => match identity(base, their_root) {
            Ok(root) => Ok(root == our_root),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(errno),
        },
        Err(errno) => Err(errno),
    }
}

fn file(path: &Path) -> Option<File> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Whether a holder was told to hold a kubelet, and not to do something else. Some write their command line anew, as one
/// text; one without any has threads left and no memory.
fn holds(by: &[&[u8]], arguments: &[u8]) -> bool {
    let mut words = arguments.split(|byte| b"\0 ".contains(byte));
    by.is_empty() || arguments.is_empty() || words.any(|word| by.contains(&word))
}

/// Where the kubelet looks its root directory up: in its own root file system, or its working directory.
fn base(dir: &Path, their_root: &Path) -> Result<OwnedFd, Errno> {
    let name = if their_root.is_absolute() { "root" } else { "cwd" };
    openat(
        CWD,
        dir.join(name),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

fn identity(base: &OwnedFd, path: &Path) -> Result<File, Errno> {
    // Links are resolved as the kubelet sees them, not as we do.
    let resolve = if path.is_absolute() {
        ResolveFlags::IN_ROOT
    } else {
        ResolveFlags::NO_MAGICLINKS
    };
    let fd = openat2(
        base,
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        resolve,
    )?;
    let found = fstat(fd)?;
    Ok((found.st_dev, found.st_ino))
}

/// A process without any thread left but a zombie, or none at all.
fn has_ended(dir: &Path) -> bool {
    let Ok(tasks) = fs::read_dir(dir.join("task")) else {
        return !dir.exists();
    };
    let is_zombie = || {
        let stat = fs::read(dir.join("stat")).unwrap_or_default();
        let after_name = stat.iter().rposition(|&byte| byte == b')').map(|at| &stat[at + 1..]);
        after_name
            .and_then(|rest| rest.trim_ascii_start().first())
            .is_some_and(|state| b"ZX".contains(state))
    };
    tasks.count() <= 1 && is_zombie()
}

/// What a flag says that names a path; the last one counts. A kubelet reads `_` in its name as `-`.
fn path_flag(arguments: &[u8], wanted: &[u8]) -> Option<PathBuf> {
    let mut found = None;
    let mut arguments = arguments.split(|&byte| byte == 0);
    while let Some(argument) = arguments.next() {
        let flag = argument.strip_prefix(HOLDERS_FLAG).unwrap_or(argument);
        let mut parts = flag.splitn(2, |&byte| byte == b'=');
        let name = parts.next().unwrap_or_default();
        let name = name.strip_prefix(b"--").unwrap_or(name);
        let dashed = name.iter().map(|&byte| if byte == b'_' { b'-' } else { byte });
        if dashed.eq(wanted.iter().copied()) {
            let value = parts.next().or_else(|| arguments.next()).unwrap_or_default();
            found = Some(OsStr::from_bytes(value).into());
        }
    }
    found
}

impl fmt::Display for KubeletProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.command, self.pid)?;
        if self.why == Why::SameMachine {
            f.write_str(
                "; its --root-dir is not our --kubelet-root: give us its directory, or, if it is another node's, \
                 name its runtime on its command line with --container-runtime-endpoint",
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
