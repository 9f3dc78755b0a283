//! Reads the mounts of this process one by one, by listmount(2) and statmount(2) of Linux 6.15 and later.
//!
//! The kernel writes the whole of mountinfo for each reader. Here a mount that is known costs no more than its ID: a node has
//! hundreds of mounts of other pods. IDs are unique until the next boot. Which mounts there are is always listed; what they show is
//! read again after a move of any of them.

#![allow(unsafe_code, reason = "no library has these system calls")]

use std::{
    ffi::{CStr, OsStr, OsString, c_long},
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use linux_raw_sys::general as kernel;
use tokio::time::Instant;

use super::{
    MAX_AGE,
    mount::{Mount, without_deleted},
    moves::Moves,
    table::{Found, MountTable},
};

/// What a mount must show. Its source and the subtype of its file system may be empty.
const REQUIRED: u32 = kernel::STATMOUNT_SB_BASIC
    | kernel::STATMOUNT_MNT_BASIC
    | kernel::STATMOUNT_MNT_ROOT
    | kernel::STATMOUNT_FS_TYPE
    | kernel::STATMOUNT_SUPPORTED_MASK;
const OPTIONAL: u32 = kernel::STATMOUNT_MNT_POINT | kernel::STATMOUNT_FS_SUBTYPE | kernel::STATMOUNT_SB_SOURCE;
/// IDs in the first call.
const IDS: usize = 1024;
/// Longest texts of a mount: two paths, and a source.
const MAX_TEXT: usize = 64 * 1024;

/// The mounts that are known.
#[derive(Debug)]
pub(super) struct KnownMounts {
    moves: Moves,
    /// By ID. `None`: it has no place in the table.
    known: Vec<(u64, Option<Found>)>,
    /// When all were last read.
    all_read: Option<Instant>,
    ids: Vec<u64>,
}

// === impl KnownMounts ===

impl KnownMounts {
    /// Knows nothing yet. `mountinfo` is this process's.
    ///
    /// # Errors
    /// If the kernel is older, or a filter of system calls forbids these.
    pub fn new(mountinfo: &Path) -> io::Result<Self> {
        Ok(Self {
            moves: Moves::watch(&mountinfo.with_file_name("ns/mnt"))?,
            known: Vec::new(),
            all_read: None,
            ids: vec![0; IDS],
        })
    }

    /// Whether a mount may have moved since the last read.
    pub fn may_have_moved(&self) -> bool {
        self.moves.may_be_any()
    }

    /// The current table, after `last`, and when all mounts in it were read: those of `last` that are still listed and have not
    /// moved are not read again.
    ///
    /// # Errors
    /// If the kernel refuses to show a mount.
    pub fn read(&mut self, scope: &Path, last: &MountTable) -> io::Result<(MountTable, Instant)> {
        let began = Instant::now();
        // Taken away, so that all are read again after an error.
        let all_read = self.all_read.take().filter(|read| read.elapsed() < MAX_AGE);
        // Before the list: a move after this is reported next time.
        let has_moved = self.moves.any()?;
        let update = match all_read {
            Some(read) if !has_moved => self.update(scope, last)?.map(|table| (table, read)),
            _ => None,
        };
        let (table, read) = match update {
            Some(update) => update,
            None => (self.read_all(scope)?, began),
        };
        self.all_read = Some(read);
        Ok((table, read))
    }

    fn read_all(&mut self, scope: &Path) -> io::Result<MountTable> {
        self.known.clear();
        self.list()?;
        self.read_new(self.ids.clone(), scope)?;
        Ok(self.table(scope))
    }

    /// Reads only new mounts; `None` if known ones may show something else now.
    fn update(&mut self, scope: &Path, last: &MountTable) -> io::Result<Option<MountTable>> {
        self.list()?;
        let (gone, new) = self.compare();
        let new = self.read_new(new, scope)?;
        // A mount beneath or upon another may have another parent from now on.
        let is_alone = |found: &Found, at_most| {
            found
                .in_scope()
                .is_none_or(|mount| last.mounts_on(&mount.path).len() <= at_most)
        };
        if !gone.iter().all(|found| is_alone(found, 1)) || !new.iter().all(|found| is_alone(found, 0)) {
            return Ok(None);
        }
        // New IDs are larger, except of a mount that comes back into this process's root directory.
        let is_sorted = self.known.is_sorted_by_key(|(id, _)| *id);
        let changed = is_sorted.then(|| last.changed(&gone, &new)).flatten();
        Ok(Some(changed.unwrap_or_else(|| {
            self.known.sort_by_key(|(id, _)| *id);
            self.table(scope)
        })))
    }

    fn table(&self, scope: &Path) -> MountTable {
        MountTable::new(scope, self.known.iter().filter_map(|(_, found)| found.clone()))
    }

    /// Reads these mounts, and returns those that have a place in the table.
    fn read_new(&mut self, ids: Vec<u64>, scope: &Path) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        let mut buffer = Vec::new();
        for id in ids {
            // Unmounted meanwhile, or moved out of this process's root directory.
            let Some(mount) = stat(id, &mut buffer)? else { continue };
            let place = Found::of(mount, scope);
            found.extend(place.clone());
            self.known.push((id, place));
        }
        Ok(found)
    }

    /// Lists the IDs of all mounts that this process can reach, in order. One call shows all of one moment.
    fn list(&mut self) -> io::Result<()> {
        let request = request(u64::MAX, 0);
        loop {
            self.ids.resize(self.ids.capacity(), 0);
            // SAFETY: the request and the buffer are valid for the call, which writes no more than its length in numbers.
            let written = unsafe {
                let (call, into) = (kernel::__NR_listmount, self.ids.as_mut_ptr());
                libc::syscall(c_long::from(call), &raw const request, into, self.ids.len(), 0)
            };
            let written = usize::try_from(written).map_err(|_| io::Error::last_os_error())?;
            if written < self.ids.len() {
                self.ids.truncate(written);
                return Ok(());
            }
            self.ids.reserve(self.ids.len() + 1);
        }
    }

    /// Forgets the mounts that are not listed. Returns their places, and the listed IDs that are not known.
    fn compare(&mut self) -> (Vec<Found>, Vec<u64>) {
        let mut listed = self.ids.iter().copied().peekable();
        let mut new = Vec::new();
        let gone = self.known.extract_if(.., |(id, _)| {
            while let Some(unknown) = listed.next_if(|listed| *listed < *id) {
                new.push(unknown);
            }
            listed.next_if_eq(id).is_none()
        });
        let gone = gone.filter_map(|(_, found)| found).collect();
        new.extend(listed);
        (gone, new)
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
        // As in mountinfo, which shows no empty field.
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
