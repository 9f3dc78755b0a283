//! Listening sockets of a process, from procfs.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use super::{kind, rights};

/// State of a TCP socket that listens.
const LISTENS: &str = "0A";
/// Flag of a socket of the file system that listens.
const ACCEPTS: &str = "00010000";

/// Whether a process that may be a kubelet listens at `at`: one that may mount, and whose name is that of a kubelet or of a
/// program that runs one inside. The process `known` is tried first.
///
/// # Errors
/// When the sockets of such a process cannot be read.
pub fn is_kubelets_answer(proc: &Path, at: SocketAddr, known: Option<i32>) -> io::Result<bool> {
    let sockets = |dir: &Path| match kind(dir)?.is_some() && rights::may_mount(proc, dir) {
        true => of(dir),
        false => Ok(BTreeSet::new()),
    };
    let is_such =
        |local: SocketAddr| local.port() == at.port() && (local.ip() == at.ip() || local.ip().is_unspecified());
    let listens =
        |sockets: &BTreeSet<u64>| Ok(!sockets.is_empty() && any_tcp(&proc.join("self/net"), sockets, is_such)?);
    if let Some(known) = known
        && listens(&sockets(&proc.join(known.to_string()))?)?
    {
        return Ok(true);
    }
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        if entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.parse::<i32>().is_ok())
        {
            all.extend(sockets(&entry.path())?);
        }
    }
    listens(&all)
}

/// Inodes of the sockets of a process; none when it has exited.
pub(super) fn of(dir: &Path) -> io::Result<BTreeSet<u64>> {
    let entries = match fs::read_dir(dir.join("fd")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        entries => entries?,
    };
    let mut inodes = BTreeSet::new();
    for entry in entries {
        match fs::read_link(entry?.path()) {
            Ok(link) => inodes.extend(inode(link.as_os_str().as_bytes())),
            // Closed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(inodes)
}

/// Parses `socket:[4711]`.
fn inode(link: &[u8]) -> Option<u64> {
    let inode = link.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(inode).ok()?.parse().ok()
}

/// Whether one of these sockets listens on such an address, by the files of `net`.
pub(super) fn any_tcp(net: &Path, inodes: &BTreeSet<u64>, is_such: impl Fn(SocketAddr) -> bool) -> io::Result<bool> {
    for file in ["tcp", "tcp6"] {
        let listens = |line: &str| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let local = fields.next().and_then(address)?;
            let state = fields.nth(1)?;
            let inode = fields.nth(5)?.parse().ok()?;
            Some(state == LISTENS && inodes.contains(&inode) && is_such(local))
        };
        if any_line(&net.join(file), listens)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether one of these sockets listens on a path that ends so, by the files of `net`.
pub(super) fn any_unix(net: &Path, inodes: &BTreeSet<u64>, ends: &[&str]) -> io::Result<bool> {
    any_line(&net.join("unix"), |line| {
        let mut fields = line.split_ascii_whitespace().skip(3);
        let flags = fields.next()?;
        let inode = fields.nth(2)?.parse().ok()?;
        let path = Path::new(fields.next()?);
        let is_such = flags == ACCEPTS && inodes.contains(&inode) && ends.iter().any(|end| path.ends_with(end));
        Some(is_such)
    })
}

/// Whether a line of the file matches. It is read line by line, because a node may have a hundred thousand connections. A missing
/// file, as without IPv6, has no line.
fn any_line(path: &Path, matches: impl Fn(&str) -> Option<bool>) -> io::Result<bool> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    let (mut file, mut line) = (BufReader::new(file), Vec::new());
    while file.read_until(b'\n', &mut line)? > 0 {
        if matches(&String::from_utf8_lossy(&line)) == Some(true) {
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
    let word = |at: usize| {
        let word = u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words: Option<Vec<[u8; 4]>> = (0..4).map(word).collect();
            let bytes: [u8; 16] = words?.concat().try_into().ok()?;
            // An IPv4 address that is mapped into IPv6.
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}
