//! Pages that the kernel holds of a file that stays open.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex};

use larder_client::Options;
use larder_vfs::{DataPath, FileSystem, Ino, Kernel};

use crate::rig::{READ, Rig, root};

/// A kernel without passthrough that remembers of which files it was to drop pages.
#[derive(Default)]
struct Pages {
    dropped: Mutex<Vec<Ino>>,
}

impl Kernel for Pages {
    fn passthrough(&self) -> bool {
        false
    }

    fn invalidate(&self, ino: Ino, attributes_only: bool) {
        if !attributes_only {
            self.dropped.lock().unwrap().push(ino);
        }
    }

    fn invalidate_entry(&self, _: Ino, _: &OsStr) {}
}

/// Who keeps a file open and reads it again and again sees each change of somebody else, not only the first: what it
/// read after that one is in the kernel's pages, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_an_open_file_go_with_each_change_of_somebody_else() {
    let rig = Rig::new(Options::default()).await;
    let kernel = Arc::new(Pages::default());
    rig.client.attach(kernel.clone());
    let other = rig.foreigner().await;
    other.put("file", b"status 0").await;
    let ino = rig.find("file").await.unwrap();
    let open = rig.client.open(&root(), ino, READ).wait().await.unwrap();
    assert!(matches!(open.path, DataPath::Cached { .. }), "not by pages of the kernel");
    for round in 1..4 {
        let bytes = format!("status {round}");
        rig.advance(60);
        other.put("file", bytes.as_bytes()).await;
        // The size is what it was: the kernel finds nothing by itself.
        assert_eq!(rig.stat("file").await.attr.size, 8);
        assert!(std::mem::take(&mut *kernel.dropped.lock().unwrap()).contains(&ino), "{round}");
        let read = rig.client.read(&root(), ino, Some(open.id), 0, 100).wait().await.unwrap();
        assert_eq!(read, bytes.as_bytes());
    }
    rig.client.release(ino, open.id).wait().await.unwrap();
}
