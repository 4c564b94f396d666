//! How a program tells its recorder about crash points and acknowledgements: it writes them to file
//! descriptors that cannot exist. The call fails at once, and the recorder, which stops at every
//! `write`, has seen it.

/// What a write to such a descriptor says. The numbers are beyond what any kernel lets a process
/// have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Marker {
    /// A crash point with this label was passed.
    Label,
    /// This must survive every crash from now on.
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

    /// Tells the recorder of this process, if there is one.
    pub fn send(self, text: &[u8]) {
        let descriptor = match self {
            Self::Label => Self::LABEL,
            Self::Acknowledgement => Self::ACKNOWLEDGEMENT,
        };
        // SAFETY: the bytes are ours and as long as we say; the kernel refuses the descriptor
        // without looking at them.
        unsafe { libc::syscall(libc::SYS_write, descriptor, text.as_ptr(), text.len()) };
    }
}
