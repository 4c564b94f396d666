//! How a program reports crash points and acknowledgements to its recorder: it writes them to file
//! descriptors that cannot exist. The call fails immediately, but the recorder, which stops at every
//! `write`, has seen it.

/// The meaning of a write to such a descriptor. The numbers are larger than any kernel allows a process
/// to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Marker {
    /// A crash point with this label was passed.
    Label,
    /// From now on this must survive every crash.
    Acknowledgement,
}

impl Marker {
    const LABEL: u32 = 0x4649_5253;
    const ACKNOWLEDGEMENT: u32 = 0x4649_5254;

    /// The marker that a write to this descriptor stands for.
    pub(crate) fn from_descriptor(descriptor: u64) -> Option<Self> {
        match descriptor as u32 {
            Self::LABEL => Some(Self::Label),
            Self::ACKNOWLEDGEMENT => Some(Self::Acknowledgement),
            _ => None,
        }
    }

    /// Reports to the recorder of this process, if there is one.
    pub fn send(self, text: &[u8]) {
        let descriptor = match self {
            Self::Label => Self::LABEL,
            Self::Acknowledgement => Self::ACKNOWLEDGEMENT,
        };
        // SAFETY: the slice is valid for its length; the kernel refuses the descriptor
        // without reading it.
        unsafe { libc::syscall(libc::SYS_write, descriptor, text.as_ptr(), text.len()) };
    }
}
