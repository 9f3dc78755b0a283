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
    time::Duration,
};

use linux_raw_sys::general as kernel;
use tokio::time::Instant;

use super::{
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
/// Maximum age of what is known of a mount. The kernel reports mounts and unmounts, but not the rename of a directory above a
/// mount.
pub(super) const MAX_AGE: Duration = Duration::from_secs(1);
/// IDs in the first call.
const IDS: usize = 1024;
/// Longest texts of a mount: two paths, and a source.
const MAX_TEXT: usize = 64 * 1024;
/// How often mounts are read that change meanwhile.
const MAX_READS: usize = 10;

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

/// The places of mounts that are known no more, and of those that are known now.
#[derive(Debug, Default)]
struct Changes {
    gone: Vec<Option<Found>>,
    new: Vec<Option<Found>>,
}

// === impl KnownMounts ===

impl KnownMounts {
    /// Knows nothing yet. `mountinfo` is this process's.
    ///
    /// # Errors
    /// If the kernel is older, or a filter of system calls forbids to watch for moves.
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

    /// The current table, after `last` and a change, and when all mounts in it were read: those of `last` that are still listed and
    /// have not moved are not read again.
    ///
    /// # Errors
    /// If the kernel refuses to show a mount, or mounts change too fast.
    pub fn read(&mut self, scope: &Path, last: &MountTable) -> io::Result<(MountTable, Instant)> {
        // Taken away, so that all are read again after an error.
        if let Some(read) = self.all_read.take().filter(|read| read.elapsed() < MAX_AGE)
            && !self.moves.any()?
            && let Some(table) = self.update(scope, last)?
            && !self.moves.any()?
        {
            self.all_read = Some(read);
            return Ok((table, read));
        }
        for _ in 0..MAX_READS {
            let began = Instant::now();
            self.moves.any()?;
            self.known.clear();
            self.refresh(scope)?;
            // A mount may have moved from a place that was read later to one that was read before.
            if !self.moves.any()? {
                self.all_read = Some(began);
                return Ok((self.table(scope), began));
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Reads only new mounts; `None` if known ones may show something else now.
    fn update(&mut self, scope: &Path, last: &MountTable) -> io::Result<Option<MountTable>> {
        let Changes { gone, new } = self.refresh(scope)?;
        // The change was perhaps a move that is not reported yet.
        if gone.is_empty() && new.is_empty() {
            return Ok(None);
        }
        let placed = |found: &[Option<Found>]| found.iter().flatten().cloned().collect::<Vec<_>>();
        let (gone, new) = (placed(&gone), placed(&new));
        // A mount beneath or upon another may have another parent from now on.
        let is_alone = |found: &Found, at_most| {
            found
                .in_scope()
                .is_none_or(|mount| last.mounts_on(&mount.path).len() <= at_most)
        };
        if !gone.iter().all(|found| is_alone(found, 1)) || !new.iter().all(|found| is_alone(found, 0)) {
            return Ok(None);
        }
        // New IDs are mostly larger, but a mount gets its ID before it is attached.
        let is_sorted = self.known.is_sorted_by_key(|(id, _)| *id);
        let changed = is_sorted.then(|| last.changed(&gone, &new)).flatten();
        Ok(Some(changed.unwrap_or_else(|| self.table(scope))))
    }

    /// Lists the mounts and reads those that are not known.
    ///
    /// All is done again if a listed mount is gone when it is read: one that has replaced it may not be in the list. So the known
    /// mounts are those of one moment, the last list.
    fn refresh(&mut self, scope: &Path) -> io::Result<Changes> {
        let mut changes = Changes::default();
        for _ in 0..MAX_READS {
            self.list()?;
            let ids = self.compare(&mut changes);
            if self.read_new(ids, scope, &mut changes)? {
                return Ok(changes);
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn table(&mut self, scope: &Path) -> MountTable {
        self.known.sort_by_key(|(id, _)| *id);
        MountTable::new(scope, self.known.iter().filter_map(|(_, found)| found.clone()))
    }

    /// Reads these mounts. `false` if one of them is gone.
    fn read_new(&mut self, ids: Vec<u64>, scope: &Path, changes: &mut Changes) -> io::Result<bool> {
        let mut buffer = Vec::new();
        for id in ids {
            let place = match stat(id, &mut buffer)? {
                Shown::Mount(mount) => Found::of(mount, scope),
                Shown::Elsewhere => None,
                Shown::Gone => return Ok(false),
            };
            changes.new.push(place.clone());
            self.known.push((id, place));
        }
        Ok(true)
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

    /// Forgets the mounts that are not listed. Returns the listed IDs that are not known.
    fn compare(&mut self, changes: &mut Changes) -> Vec<u64> {
        let mut listed = self.ids.iter().copied().peekable();
        let mut new = Vec::new();
        let missing = self.known.extract_if(.., |(id, _)| {
            while let Some(unknown) = listed.next_if(|listed| *listed < *id) {
                new.push(unknown);
            }
            listed.next_if_eq(id).is_none()
        });
        changes.gone.extend(missing.map(|(_, found)| found));
        new.extend(listed);
        new
    }
}

/// What the kernel shows of a mount.
enum Shown {
    Mount(Mount),
    /// It cannot be reached from this process's root directory.
    Elsewhere,
    Gone,
}

/// The mount with this ID.
fn stat(id: u64, buffer: &mut Vec<u64>) -> io::Result<Shown> {
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
            Some(libc::ENOENT) => return Ok(Shown::Gone),
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
fn parse(shown: &kernel::statmount, texts: &[u8]) -> io::Result<Shown> {
    let has = |flags: u32| shown.mask & u64::from(flags) == u64::from(flags);
    if !has(REQUIRED) || shown.supported_mask & u64::from(OPTIONAL) != u64::from(OPTIONAL) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    if !has(kernel::STATMOUNT_MNT_POINT) {
        return Ok(Shown::Elsewhere);
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
    Ok(Shown::Mount(Mount {
        id: shown.mnt_id_old.into(),
        parent: shown.mnt_parent_id_old.into(),
        device: (shown.sb_dev_major, shown.sb_dev_minor),
        root: root.into(),
        root_deleted,
        path: PathBuf::from(text(kernel::STATMOUNT_MNT_POINT, shown.mnt_point)?),
        fs_type,
        source: if has(kernel::STATMOUNT_SB_SOURCE) {
            source.to_owned()
        } else {
            // As in mountinfo.
            "none".into()
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
