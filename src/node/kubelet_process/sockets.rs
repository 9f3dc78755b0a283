//! Listening sockets of a process, from procfs.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, ErrorKind},
    net::{IpAddr, SocketAddr},
    os::{
        fd::RawFd,
        unix::{ffi::OsStrExt as _, net::UnixListener},
    },
    path::{Path, PathBuf},
};

use nix::sys::{
    socket::{getsockopt, sockopt::AcceptConn},
    stat::fstat,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::kind::has_exited;
use crate::node::procfs::unless_exited;

/// Listening sockets: the path of each by its inode.
pub(super) type Listeners = BTreeMap<u64, PathBuf>;

/// Every kubelet listens here, below its root directory: device plugin registration and the pod resources API.
const OF_KUBELET: [&str; 2] = ["device-plugins/kubelet.sock", "pod-resources/kubelet.sock"];
/// State of a TCP socket that listens.
const LISTENS: &str = "0A";
/// Flag of a socket of the file system that listens.
const ACCEPTS: &[u8] = b"00010000";

/// Inodes of the sockets of a process; none when it has exited.
pub(super) fn inodes(dir: &Path) -> io::Result<BTreeSet<u64>> {
    Ok(sockets(dir)?.into_iter().map(|(_, inode)| inode).collect())
}

/// Paths of the sockets of a kubelet on which the process listens.
pub(super) fn owned(dir: &Path, listeners: &Listeners) -> io::Result<Vec<PathBuf>> {
    let paths = sockets(dir)?.into_iter().filter_map(|(descriptor, inode)| {
        let shown = listeners.get(&inode)?;
        // A line of `net/unix` may be forged: any process of the network namespace may bind a path with a newline in it.
        let path = listens_at(dir, descriptor, inode).unwrap_or_else(|| Some(shown.clone()));
        path.filter(|path| OF_KUBELET.iter().any(|end| path.ends_with(end)))
    });
    Ok(paths.collect())
}

/// The path on which this socket of the process listens, by the socket itself; `None` if the socket cannot be duplicated,
/// `Some(None)` if it does not listen on a path.
fn listens_at(dir: &Path, descriptor: RawFd, inode: u64) -> Option<Option<PathBuf>> {
    let pid = Pid::from_raw(dir.file_name()?.to_str()?.parse().ok()?)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let socket = pidfd_getfd(process, descriptor, PidfdGetfdFlags::empty()).ok()?;
    // It may be another socket by now.
    if fstat(&socket).ok()?.st_ino != inode {
        return None;
    }
    let accepts = getsockopt(&socket, AcceptConn).ok()?;
    // An error is the address of another family.
    let at = UnixListener::from(socket).local_addr().ok().filter(|_| accepts);
    Some(at.and_then(|at| at.as_pathname().map(Path::to_owned)))
}

/// Descriptor and inode of each socket of a process. An exited process has none.
fn sockets(dir: &Path) -> io::Result<Vec<(RawFd, u64)>> {
    let mut sockets = Vec::new();
    for entry in unless_exited(fs::read_dir(dir.join("fd")))?.into_iter().flatten() {
        let entry = entry?;
        match fs::read_link(entry.path()) {
            Ok(link) => {
                let descriptor = entry.file_name().to_str().and_then(|name| name.parse().ok());
                sockets.extend(descriptor.zip(inode(link.as_os_str().as_bytes())));
            }
            // Closed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            // The kernel answers so for a process that is exiting, too.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && has_exited(dir) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sockets)
}

/// Parses `socket:[4711]`.
fn inode(link: &[u8]) -> Option<u64> {
    let inode = link.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(inode).ok()?.parse().ok()
}

/// Whether one of these sockets listens on such an address, by the files of `net`.
pub(super) fn any_tcp(net: &Path, inodes: &BTreeSet<u64>, is_such: impl Fn(SocketAddr) -> bool) -> io::Result<bool> {
    for file in ["tcp", "tcp6"] {
        let listens = |line: &[u8]| {
            let mut fields = std::str::from_utf8(line).ok()?.split_ascii_whitespace().skip(1);
            let local = fields.next().and_then(address)?;
            let state = fields.nth(1)?;
            let inode = fields.nth(5)?.parse().ok()?;
            Some(state == LISTENS && inodes.contains(&inode) && is_such(local))
        };
        if each_line(&net.join(file), |line| listens(line) == Some(true))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// All sockets of a kubelet that listen, by the files of `net`.
pub(super) fn listening(net: &Path) -> io::Result<Listeners> {
    let mut found = Listeners::new();
    each_line(&net.join("unix"), |line| {
        if let Some((inode, path)) = listener(line)
            && OF_KUBELET.iter().any(|end| path.ends_with(end))
        {
            found.insert(inode, path.to_owned());
        }
        false
    })?;
    Ok(found)
}

/// Parses a line of `net/unix`: inode and path of a socket of the file system that listens.
fn listener(line: &[u8]) -> Option<(u64, &Path)> {
    let mut fields = line.splitn(7, |&byte| byte == b' ');
    let flags = fields.nth(3)?;
    // The inode is padded, and the path may contain spaces.
    let rest = fields.nth(2)?.trim_ascii_start();
    let (inode, path) = rest.split_at(rest.iter().position(|&byte| byte == b' ')?);
    let inode = std::str::from_utf8(inode).ok()?.parse().ok()?;
    (flags == ACCEPTS).then(|| (inode, Path::new(OsStr::from_bytes(&path[1..]))))
}

/// Calls `is_last` with each line of the file until it returns `true`, and returns whether it did. The file is read line by line,
/// because a node may have a hundred thousand connections. A missing file, as without IPv6, has no line.
fn each_line(path: &Path, mut is_last: impl FnMut(&[u8]) -> bool) -> io::Result<bool> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    let (mut file, mut line) = (BufReader::new(file), Vec::new());
    while file.read_until(b'\n', &mut line)? > 0 {
        if is_last(line.strip_suffix(b"\n").unwrap_or(&line)) {
            return Ok(true);
        }
        line.clear();
    }
    Ok(false)
}

/// Parses `0100007F:2808`, in this CPU's byte order.
fn address(field: &str) -> Option<SocketAddr> {
    let (ip, port) = field.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |word| {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16);
        Some(word.ok()?.to_ne_bytes())
    };
    let words: Option<Vec<[u8; 4]>> = ip.as_bytes().chunks(8).map(word).collect();
    let bytes = words?.concat();
    let ip = match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(ip) => IpAddr::from(ip),
        // An IPv4 address may be mapped into IPv6.
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
    };
    Some(SocketAddr::new(ip, port))
}
