//! Reads the mounts of this process one by one, by listmount(2) and statmount(2) of Linux 6.15 and later.
//!
//! The kernel writes the whole of mountinfo for each reader. Here a mount that is known costs no more than its ID: a node has
//! hundreds of mounts of other pods. IDs are unique until the next boot.

#![allow(unsafe_code, reason = "no library has these system calls")]

use std::{
    collections::BTreeMap,
    ffi::{CStr, OsStr, OsString, c_long},
    io, mem,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use linux_raw_sys::general as kernel;
use tokio::time::Instant;

use super::{
    mount::{Mount, without_deleted},
    table::{Found, MountTable},
};

/// What a mount must show. Its source and the subtype of its file system may be empty.
const REQUIRED: u32 = kernel::STATMOUNT_SB_BASIC
    | kernel::STATMOUNT_MNT_BASIC
    | kernel::STATMOUNT_MNT_ROOT
    | kernel::STATMOUNT_FS_TYPE
    | kernel::STATMOUNT_SUPPORTED_MASK;
const OPTIONAL: u32 = kernel::STATMOUNT_MNT_POINT | kernel::STATMOUNT_FS_SUBTYPE | kernel::STATMOUNT_SB_SOURCE;
/// IDs per call. A table that changes between two calls still shows each mount that was there all the time: IDs are in order,
/// and new ones are larger.
const IDS: usize = 4096;
/// Longest texts of a mount: two paths, and a source.
const MAX_TEXT: usize = 64 * 1024;
/// The path of a known mount is read again after this time: a move of the mount, or of a directory above it, does not change the
/// ID.
pub(super) const MAX_AGE: Duration = Duration::from_secs(1);

/// The mounts in a scope that are known, by ID.
#[derive(Debug, Default)]
pub(super) struct KnownMounts {
    /// `None`: it has no place in the table.
    known: BTreeMap<u64, Option<Found>>,
    all_read: Option<Instant>,
    buffer: Vec<u64>,
}

// === impl KnownMounts ===

impl KnownMounts {
    /// The current table.
    ///
    /// # Errors
    /// If the kernel is older, or a filter of system calls forbids these.
    pub fn read(&mut self, scope: &Path) -> io::Result<MountTable> {
        let began = Instant::now();
        if self.all_read.is_none_or(|read| began - read >= MAX_AGE) {
            self.known.clear();
            self.all_read = Some(began);
        }
        let listed = self.update(scope);
        if listed.is_err() {
            self.known.clear();
        }
        listed?;
        let found = self.known.values().flatten();
        Ok(MountTable::new(scope, found.cloned()))
    }

    fn update(&mut self, scope: &Path) -> io::Result<()> {
        let mut ids = mem::take(&mut self.buffer);
        ids.clear();
        list(&mut ids)?;
        if self.known.len() > ids.len() || !self.known.keys().all(|id| ids.binary_search(id).is_ok()) {
            self.known.retain(|id, _| ids.binary_search(id).is_ok());
        }
        let mut text = Vec::new();
        for id in &ids {
            if self.known.contains_key(id) {
                continue;
            }
            // Unmounted meanwhile, or moved out of this process's root directory.
            let Some(mount) = stat(*id, &mut text)? else { continue };
            self.known.insert(*id, Found::of(mount, scope));
        }
        self.buffer = ids;
        Ok(())
    }
}

/// Appends the IDs of all mounts that this process can reach, in order.
fn list(ids: &mut Vec<u64>) -> io::Result<()> {
    loop {
        let read = ids.len();
        let request = request(u64::MAX, ids.last().copied().unwrap_or_default());
        ids.resize(read + IDS, 0);
        // SAFETY: the request and the buffer are valid for the call, which writes no more than `IDS` numbers.
        let written = unsafe {
            let (call, into) = (kernel::__NR_listmount, ids[read..].as_mut_ptr());
            libc::syscall(c_long::from(call), &raw const request, into, IDS, 0)
        };
        let written = usize::try_from(written).map_err(|_| io::Error::last_os_error())?;
        ids.truncate(read + written);
        if written < IDS {
            return Ok(());
        }
    }
}

/// The mount with this ID; `None` if it is gone.
fn stat(id: u64, buffer: &mut Vec<u64>) -> io::Result<Option<Mount>> {
    let request = request(id, u64::from(REQUIRED | OPTIONAL));
    let mut size = 1024;
    loop {
        // Numbers, so that the structure at its begin is aligned.
        buffer.resize(size / size_of::<u64>(), 0);
        // SAFETY: the request and the buffer are valid for the call, which writes no more than `size` bytes.
        let answer = unsafe {
            let (call, into) = (kernel::__NR_statmount, buffer.as_mut_ptr());
            libc::syscall(c_long::from(call), &raw const request, into, size, 0)
        };
        if answer == 0 {
            break;
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT) => return Ok(None),
            Some(libc::EOVERFLOW) if size < MAX_TEXT => size *= 4,
            _ => return Err(error),
        }
    }
    // SAFETY: the buffer is larger than the structure, aligned, and was written by the kernel; any bytes are valid numbers.
    let shown = unsafe { buffer.as_ptr().cast::<kernel::statmount>().read() };
    // SAFETY: any bytes of a buffer of numbers are bytes.
    let text = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), size) };
    parse(&shown, &text[size_of::<kernel::statmount>()..])
}

/// `texts` follow the structure, each with its end.
fn parse(shown: &kernel::statmount, texts: &[u8]) -> io::Result<Option<Mount>> {
    let has = |flags: u32| shown.mask & u64::from(flags) == u64::from(flags);
    if !has(REQUIRED) || shown.supported_mask & u64::from(OPTIONAL) != u64::from(OPTIONAL) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    if !has(kernel::STATMOUNT_MNT_POINT) {
        return Ok(None);
    }
    let text = |flag: u32, at: u32| -> io::Result<&OsStr> {
        if !has(flag) {
            return Ok(OsStr::new(""));
        }
        let text = texts
            .get(at as usize..)
            .and_then(|rest| CStr::from_bytes_until_nul(rest).ok());
        Ok(OsStr::from_bytes(text.ok_or(io::ErrorKind::InvalidData)?.to_bytes()))
    };
    let mut fs_type = text(kernel::STATMOUNT_FS_TYPE, shown.fs_type)?.to_owned();
    let subtype = text(kernel::STATMOUNT_FS_SUBTYPE, shown.fs_subtype)?;
    if !subtype.is_empty() {
        fs_type.push(".");
        fs_type.push(subtype);
    }
    let (root, root_deleted) = without_deleted(text(kernel::STATMOUNT_MNT_ROOT, shown.mnt_root)?.to_owned());
    let source = text(kernel::STATMOUNT_SB_SOURCE, shown.sb_source)?;
    Ok(Some(Mount {
        id: shown.mnt_id_old.into(),
        parent: shown.mnt_parent_id_old.into(),
        device: (shown.sb_dev_major, shown.sb_dev_minor),
        root: root.into(),
        root_deleted,
        path: PathBuf::from(text(kernel::STATMOUNT_MNT_POINT, shown.mnt_point)?),
        fs_type,
        // As in mountinfo.
        source: if source.is_empty() {
            "none".into()
        } else {
            source.to_owned()
        },
        super_options: OsString::new(),
    }))
}

fn request(mnt_id: u64, param: u64) -> kernel::mnt_id_req {
    kernel::mnt_id_req {
        size: kernel::MNT_ID_REQ_SIZE_VER1,
        spare: 0,
        mnt_id,
        param,
        mnt_ns_id: 0,
    }
}
