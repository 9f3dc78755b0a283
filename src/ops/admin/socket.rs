//! The socket file.

use std::{
    fs::{DirBuilder, Permissions},
    io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use nix::sys::socket::{Shutdown, shutdown};
use tokio::net::{UnixListener, UnixStream};

/// The listening socket. Connections are refused as soon as this is dropped.
#[derive(Debug)]
pub struct AdminListener(pub(super) UnixListener);

/// The socket file, identified by device and inode.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    id: (u64, u64),
}

/// Whether a process listens on the socket; `None` if it does not exist.
///
/// # Errors
/// When the path is not a socket, or the check fails.
pub async fn is_listened_on(path: &Path) -> io::Result<Option<bool>> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(io::Error::other("it is no socket")),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    match UnixStream::connect(path).await {
        Ok(_) => Ok(Some(true)),
        // No process listens. Other errors do not prove that.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(Some(false)),
        Err(error) => Err(io::Error::other(format!(
            "cannot tell whether a process listens there: {error}"
        ))),
    }
}

/// Creates the socket with mode 0600, and its directory. The socket of an agent that has exited is replaced.
///
/// # Errors
/// `AddrInUse` if a process listens there; otherwise when the socket cannot be created.
pub async fn listen(path: &Path) -> io::Result<(AdminListener, SocketFile)> {
    if let Some(dir) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o750).create(dir)?;
    }
    match is_listened_on(path).await? {
        None => {}
        Some(false) => std::fs::remove_file(path)?,
        Some(true) => {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another process listens there already",
            ));
        }
    }
    let listener = AdminListener(UnixListener::bind(path)?);
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    let socket = SocketFile {
        path: path.to_owned(),
        id: file_id(path)?,
    };
    Ok((listener, socket))
}

fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

// === impl AdminListener ===

impl Drop for AdminListener {
    fn drop(&mut self) {
        // Between fork and exec, a child has a copy of the descriptor: connections would succeed after a close, and the next
        // agent would not replace the socket.
        shutdown(self.0.as_raw_fd(), Shutdown::Both).ok();
    }
}

// === impl SocketFile ===

impl SocketFile {
    /// Removes the socket, unless it was replaced.
    pub fn remove(self) {
        if file_id(&self.path).is_ok_and(|id| id == self.id) {
            // It may be removed already.
            std::fs::remove_file(&self.path).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[tokio::test]
    async fn dropped_listener_refuses_connections_although_a_child_has_a_copy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let (listener, _file) = listen(&path).await.unwrap();
        let _copy = listener.0.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(is_listened_on(&path).await.unwrap(), Some(true));
        drop(listener);
        assert_eq!(is_listened_on(&path).await.unwrap(), Some(false));
    }
}
