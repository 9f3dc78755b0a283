//! Sockets on which a process listens, by the kernel's word.

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

/// Whether what answers at `at` on this machine may be a kubelet: a process that listens there has the name of one, or of a
/// program that holds one, and may mount.
///
/// # Errors
/// Where the kernel does not tell who listens.
pub fn is_kubelets_answer(proc: &Path, at: SocketAddr) -> io::Result<bool> {
    let mut of_candidates = BTreeSet::new();
    for entry in fs::read_dir(proc)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_process = name.to_str().is_some_and(|name| name.parse::<i32>().is_ok());
        if is_process && kind(&entry.path())?.is_some() && rights::may_mount(proc, &entry.path()) {
            of_candidates.extend(of(&entry.path())?);
        }
    }
    let answers =
        |local: SocketAddr| local.port() == at.port() && (local.ip() == at.ip() || local.ip().is_unspecified());
    Ok(!of_candidates.is_empty() && any_tcp(&proc.join("self/net"), &of_candidates, answers)?)
}

/// The sockets that a process has, by inode. None of one that has ended.
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

/// Of `socket:[4711]`.
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

/// A machine may have a hundred thousand connections: line by line, and no further than to the first that is meant. What is not
/// there, as without IPv6, has no line.
fn any_line(path: &Path, is_meant: impl Fn(&str) -> Option<bool>) -> io::Result<bool> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    let (mut file, mut line) = (BufReader::new(file), Vec::new());
    while file.read_until(b'\n', &mut line)? > 0 {
        if is_meant(&String::from_utf8_lossy(&line)) == Some(true) {
            return Ok(true);
        }
        line.clear();
    }
    Ok(false)
}

/// Of `0100007F:2808`, in the machine's byte order.
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
            // One socket for both is as if it were for this one.
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}
