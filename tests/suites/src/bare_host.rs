//! One NIC and a host that has nothing but memory and registers: for tests that do by hand what a driver does.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use ferroce_firmware_iface::layout::Layout;
use ferroce_firmware_iface::layouts::*;
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_nic_model::clock::Nanos;
use ferroce_nic_model::link::cable::{CablePort, cable};
use ferroce_nic_model::nic::Nic;
use ferroce_nic_model::profile::Profile;
use ferroce_nic_model::wire::Frame;
use ferroce_vfio_user::device::{DmaFd, DmaMap};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use zerocopy::IntoBytes;

/// Where the host's memory is, as the NIC sees it.
pub const MEMORY: u64 = 0x10_0000;
/// Its size.
pub const BYTES: u64 = 1 << 20;
/// A multicast group.
pub const GROUP: [u8; 16] = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
/// The send queue of [`Host::objects`]: 32 blocks of 64 bytes, behind the receive queue.
pub const SEND_QUEUE: u64 = MEMORY + 0x4_0000 + 32 * 16;
const INPUT: u64 = MEMORY + 0x1000;
const OUTPUT: u64 = MEMORY + 0x8_0000;
/// What the firmware gets of it, as far as its profile needs pages.
const PAGES: u64 = MEMORY + 0xa_0000;
/// Turns of the engine after which an access has to have been dealt with.
const MOST_TURNS: usize = 10_000;

/// A NIC, and its host.
#[derive(Debug)]
pub struct Host {
    /// The NIC.
    pub nic: Nic,
    memory: File,
    /// The time.
    pub now: Nanos,
    _peer: CablePort,
}

impl Default for Host {
    fn default() -> Host {
        Host::new()
    }
}

impl Host {
    /// A host whose NIC, of the minimal profile, needs no pages, brought to where objects can be created.
    pub fn new() -> Host {
        Host::with(Profile::minimal())
    }

    /// The same with a NIC of that kind, which needs 96 pages at most.
    pub fn with(profile: Profile) -> Host {
        let fd = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        ftruncate(&fd, BYTES).expect("its size");
        let memory = File::from(fd.try_clone().expect("another descriptor"));
        let (port, peer) = cable(16);
        let mut host = Host {
            nic: Nic::new(profile, Box::new(port)),
            memory,
            now: Nanos(1_000_000_000),
            _peer: peer,
        };
        host.map(fd);
        host.bring_up();
        host
    }

    fn map(&mut self, fd: OwnedFd) {
        let map = DmaMap {
            iova: MEMORY,
            len: BYTES,
            readable: true,
            writable: true,
            memory: Some(DmaFd { fd, offset: 0 }),
        };
        self.nic.dma_map(map).expect("DMA map");
    }

    /// Enables the function and its command queue, and starts the firmware.
    pub fn bring_up(&mut self) {
        self.now = Nanos(self.now.get() + 1_000_000_000);
        self.nic
            .config_write(self.now, 4, &[6, 0])
            .expect("command register");
        self.write(0x10, &0u32.to_be_bytes());
        self.write(0x14, &(MEMORY as u32).to_be_bytes());
        let profile = self.nic.firmware().profile();
        let (boot, init) = (profile.boot_pages, profile.init_pages);
        self.start(Opcode::ENABLE_HCA, 0);
        self.give(0, boot);
        self.start(Opcode::ACCESS_REG, 0x7004);
        self.give(boot, init);
        self.start(Opcode::INIT_HCA, 0);
    }

    fn start(&mut self, opcode: Opcode, register: u16) {
        let mut input = vec![0; 32];
        input[..2].copy_from_slice(&opcode.0.to_be_bytes());
        input[10..12].copy_from_slice(&register.to_be_bytes());
        assert_eq!(self.command(&input, 32), Some(0), "{opcode:?}");
    }

    /// Gives the firmware so many pages, from number `first` on.
    fn give(&mut self, first: u32, count: u32) {
        if count == 0 {
            return;
        }
        let mut input = vec![0; 16];
        input[..2].copy_from_slice(&Opcode::MANAGE_PAGES.0.to_be_bytes());
        input[7] = 1;
        input[12..16].copy_from_slice(&count.to_be_bytes());
        let pages = (first..first + count).map(|page| PAGES + u64::from(page) * 4096);
        input.extend(pages.flat_map(u64::to_be_bytes));
        assert_eq!(self.command(&input, 16), Some(0), "{count} pages from {first} on");
    }

    /// One object of each kind, an RC QP that is connected to itself.
    pub fn objects(&mut self) {
        self.objects_of(0);
    }

    /// The same with a QP of another service (`qpc.st`). One for datagrams has a Q_Key of 0, and is in the group
    /// [`GROUP`].
    pub fn objects_of(&mut self, service: u8) {
        const UD: u8 = 2;
        for mut input in templates().into_iter().take(UP_TO_RTS) {
            if input.starts_with(&Opcode::CREATE_QP.0.to_be_bytes()) {
                input[0x19] = service;
            }
            self.must(&input);
        }
        if service == UD {
            let mut attach = AttachToMcgIn::zeroed();
            attach.set_qpn(0x40).expect("24 bits");
            GROUP
                .iter()
                .enumerate()
                .for_each(|(i, byte)| attach.set_multicast_gid(i, *byte));
            let mut input = attach.as_bytes().to_vec();
            input[..2].copy_from_slice(&Opcode::ATTACH_TO_MCG.0.to_be_bytes());
            self.must(&input);
        }
    }

    fn must(&mut self, input: &[u8]) {
        let status = self.command(input, 16);
        let violations = self.nic.firmware().violations();
        let said = violations.iter().last().map(ToString::to_string);
        assert_eq!(status, Some(0), "{said:?}");
    }

    /// Lets the NIC work until it has nothing to do.
    pub fn turn(&mut self) {
        for _ in 0..MOST_TURNS {
            if !self.nic.poll(self.now) {
                return;
            }
        }
        panic!("the NIC is never done");
    }

    /// Writes to BAR 0, and lets the NIC work.
    pub fn write(&mut self, at: u64, data: &[u8]) {
        self.nic.bar_write(self.now, at, data).expect("in the BAR");
        self.turn();
    }

    /// Writes to the host's memory.
    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at - MEMORY).expect("memory");
    }

    fn chain(&self, at: u64, data: &[u8], length: usize) {
        for i in 0..length.saturating_sub(16).div_ceil(512) {
            let mut block = [0; 576];
            let part = data.get(i * 512..).unwrap_or_default();
            let n = part.len().min(512);
            block[..n].copy_from_slice(&part[..n]);
            block[0x230..0x238].copy_from_slice(&(at + (i as u64 + 1) * 1024).to_be_bytes());
            block[0x238..0x23c].copy_from_slice(&(i as u32).to_be_bytes());
            self.put(at + i as u64 * 1024, &block);
        }
    }

    /// The command's status; `None` when it was not delivered or not answered.
    pub fn command(&mut self, input: &[u8], output_length: usize) -> Option<u8> {
        self.submit(input, output_length);
        self.turn();
        self.answer()
    }

    /// Puts a command into the queue and rings; the NIC has not looked at it yet.
    pub fn submit(&mut self, input: &[u8], output_length: usize) {
        let inline = input.len().min(16);
        self.chain(INPUT, &input[inline..], input.len());
        self.chain(OUTPUT, &[], output_length);
        let mut entry = [0; 64];
        entry[0] = 7;
        entry[4..8].copy_from_slice(&(input.len() as u32).to_be_bytes());
        entry[8..16].copy_from_slice(&INPUT.to_be_bytes());
        entry[0x10..0x10 + inline].copy_from_slice(&input[..inline]);
        entry[0x30..0x38].copy_from_slice(&OUTPUT.to_be_bytes());
        entry[0x38..0x3c].copy_from_slice(&(output_length as u32).to_be_bytes());
        entry[0x3f] = 1;
        self.put(MEMORY, &entry);
        let rung = self.nic.bar_write(self.now, 0x18, &1u32.to_be_bytes());
        rung.expect("in the BAR");
    }

    /// The status of the command that was submitted last; `None` when it was not delivered, or not answered yet.
    pub fn answer(&self) -> Option<u8> {
        let entry = self.bytes(MEMORY, 64);
        (entry[0x3f] == 0).then_some(entry[0x20])
    }

    /// A copy of the host's memory.
    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory
            .read_exact_at(&mut bytes, at - MEMORY)
            .expect("memory");
        bytes
    }
}

/// Well-formed commands, which a hostile host then bends. What they name is what is given out first.
pub fn templates() -> Vec<Vec<u8>> {
    let mut list: Vec<Vec<u8>> = Vec::new();
    let mut add = |bytes: &[u8], opcode: Opcode, pages: u64| {
        let mut input = bytes.to_vec();
        input[..2].copy_from_slice(&opcode.0.to_be_bytes());
        for i in 0..pages {
            input.extend_from_slice(&(MEMORY + 0x4_0000 + i * 4096).to_be_bytes());
        }
        list.push(input);
    };
    for opcode in [Opcode::ALLOC_UAR, Opcode::ALLOC_PD, Opcode::ALLOC_XRCD] {
        add(&[0; 16], opcode, 0);
    }
    let mut eq = CreateEqIn::zeroed();
    eq.eq_context_entry_mut().set_log_eq_size(5).unwrap();
    eq.eq_context_entry_mut().set_uar_page(0x10).unwrap();
    eq.set_event_bitmask(0, 0x1f02be | 1 << 0xb);
    add(eq.as_bytes(), Opcode::CREATE_EQ, 1);
    let mut cq = CreateCqIn::zeroed();
    cq.cq_context_mut().set_log_cq_size(5).unwrap();
    cq.cq_context_mut().set_uar_page(0x10).unwrap();
    cq.cq_context_mut().set_c_eqn_or_apu_element(0x10);
    cq.cq_context_mut().set_dbr_addr(MEMORY + 0x3_0000);
    add(cq.as_bytes(), Opcode::CREATE_CQ, 1);
    let mut qp = CreateQpIn::zeroed();
    let qpc = qp.qpc_mut();
    qpc.set_pd(1).unwrap();
    qpc.set_pm_state(3).unwrap();
    qpc.set_cqn_snd(0x80).unwrap();
    qpc.set_cqn_rcv(0x80).unwrap();
    qpc.set_uar_page(0x10).unwrap();
    qpc.set_log_sq_size(5).unwrap();
    qpc.set_log_rq_size(5).unwrap();
    qpc.set_dbr_addr(MEMORY + 0x3_0040);
    add(qp.as_bytes(), Opcode::CREATE_QP, 2);
    let mut mkey = CreateMkeyIn::zeroed();
    let mkc = mkey.memory_key_mkey_entry_mut();
    mkc.set_pd(1).unwrap();
    mkc.set_access_mode_1_0(1).unwrap();
    mkc.set_lr(true);
    mkc.set_lw(true);
    mkc.set_rw(true);
    mkc.set_qpn(0xff_ffff).unwrap();
    mkc.set_start_addr(MEMORY + 0x4_0000);
    mkc.set_len(0x4000);
    mkc.set_log_page_size(12).unwrap();
    mkc.set_translations_octword_size(2);
    mkey.set_translations_octword_actual_size(2);
    add(mkey.as_bytes(), Opcode::CREATE_MKEY, 4);
    let mut gid = SetRoceAddressIn::zeroed();
    let address = gid.roce_address_mut();
    address.set_source_l3_address(0, 0xfd);
    address.set_source_mac_31_0(1);
    address.set_roce_l3_type(1).unwrap();
    address.set_roce_version(2);
    add(gid.as_bytes(), Opcode::SET_ROCE_ADDRESS, 0);
    let mut transition = Init2rtrQpIn::zeroed();
    transition.set_qpn(0x40).unwrap();
    let qpc = transition.qpc_mut();
    qpc.set_pd(1).unwrap();
    qpc.set_cqn_snd(0x80).unwrap();
    qpc.set_cqn_rcv(0x80).unwrap();
    qpc.set_mtu(3).unwrap();
    qpc.set_log_msg_max(30).unwrap();
    qpc.set_remote_qpn(0x40).unwrap();
    qpc.set_rwe(true);
    let path = qpc.primary_address_path_mut();
    path.set_rmac_31_0(1);
    path.set_rgid_rip(0, 0xfd);
    path.set_ack_timeout(14).unwrap();
    for opcode in [
        Opcode::RST2INIT_QP,
        Opcode::INIT2RTR_QP,
        Opcode::RTR2RTS_QP,
        Opcode::RTS2RTS_QP,
        Opcode::INIT2INIT_QP,
    ] {
        add(transition.as_bytes(), opcode, 0);
    }
    let mut cnp = ModifyCongParamsIn::zeroed();
    cnp.set_cong_protocol(2).unwrap();
    cnp.set_field_select(0x1c);
    add(cnp.as_bytes(), Opcode::MODIFY_CONG_PARAMS, 0);
    let mut group = AttachToMcgIn::zeroed();
    group.set_qpn(0x40).unwrap();
    group.set_multicast_gid(0, 0xff);
    add(group.as_bytes(), Opcode::ATTACH_TO_MCG, 0);
    add(group.as_bytes(), Opcode::DETACH_FROM_MCG, 0);
    let mut srq = CreateSrqIn::zeroed();
    srq.srq_context_entry_mut().set_pd(1).unwrap();
    srq.srq_context_entry_mut().set_log_srq_size(5).unwrap();
    srq.srq_context_entry_mut().set_dbr_addr(MEMORY + 0x3_0080);
    add(srq.as_bytes(), Opcode::CREATE_SRQ, 1);
    let mut umem = CreateUmemIn::zeroed();
    umem.umem_mut().set_num_of_mtt(2);
    add(umem.as_bytes(), Opcode::CREATE_UMEM, 2);
    let mut vport = ModifyNicVportContextIn::zeroed();
    vport.field_select_mut().set_roce_en(true);
    vport.nic_vport_context_mut().set_roce_en(true);
    add(vport.as_bytes(), Opcode::MODIFY_NIC_VPORT_CONTEXT, 0);
    for (opcode, number) in [
        (Opcode::QP_2ERR, 0x40u32),
        (Opcode::QP_2RST, 0x40),
        (Opcode::QUERY_QP, 0x40),
        (Opcode::DESTROY_QP, 0x40),
        (Opcode::QUERY_CQ, 0x80),
        (Opcode::DESTROY_CQ, 0x80),
        (Opcode::QUERY_EQ, 0x10),
        (Opcode::DESTROY_EQ, 0x10),
        (Opcode::QUERY_MKEY, 0x100),
        (Opcode::DESTROY_MKEY, 0x100),
        (Opcode::DESTROY_SRQ, 1),
        (Opcode::DEALLOC_PD, 1),
        (Opcode::DEALLOC_UAR, 0x10),
        (Opcode::TEARDOWN_HCA, 0),
    ] {
        let mut input = [0; 16];
        input[8..12].copy_from_slice(&number.to_be_bytes());
        add(&input, opcode, 0);
    }
    list
}

/// How many of the templates bring a QP to RTS, in order.
const UP_TO_RTS: usize = 11;

impl Host {
    /// Lets time pass.
    pub fn pass(&mut self, ns: u64) {
        self.now = Nanos(self.now.get() + ns);
        self.turn();
    }

    /// A function reset, and the way up again.
    pub fn reset(&mut self) {
        self.nic.reset(self.now);
        self.bring_up();
    }

    /// Writes to the configuration space, and lets the NIC work.
    pub fn config_write(&mut self, at: u16, data: &[u8]) {
        self.nic.config_write(self.now, at, data).expect("in the space");
        self.turn();
    }

    /// Lets the port send and receive RoCE.
    pub fn enable_roce(&mut self) {
        let opcode = Opcode::MODIFY_NIC_VPORT_CONTEXT.0.to_be_bytes();
        let template = templates().into_iter().find(|input| input.starts_with(&opcode));
        let status = self.command(&template.expect("a template"), 16);
        assert_eq!(status, Some(0));
    }

    /// Tells the NIC that the send queue of [`Host::objects`] goes up to this block.
    pub fn ring_send(&mut self, blocks: u16) {
        self.doorbell(blocks);
        self.turn();
    }

    /// The same, and the NIC has not looked at it yet.
    pub fn doorbell(&mut self, blocks: u16) {
        self.put(MEMORY + 0x3_0044, &u32::from(blocks).to_be_bytes());
        let mut control = [0; 8];
        control[1..3].copy_from_slice(&blocks.wrapping_sub(1).to_be_bytes());
        control[4..8].copy_from_slice(&0x4001u32.to_be_bytes());
        let rung = self.nic.bar_write(self.now, 0x1_0800, &control);
        rung.expect("in the BAR");
    }

    /// A frame from the wire.
    pub fn receive(&mut self, frame: Vec<u8>) {
        self.nic.data_plane.receive(self.now, Frame::from_vec(frame));
        self.turn();
    }

    /// Bytes from the BTH on as a frame of the peer to [`GROUP`].
    pub fn frame_of_group(packet: &[u8]) -> Vec<u8> {
        let mut frame = Host::frame_of_peer(packet);
        frame[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 9]);
        frame[14 + 24..14 + 40].copy_from_slice(&GROUP);
        frame
    }

    /// Bytes from the BTH on as a frame of the peer that the queue pair of [`Host::objects`] is connected to.
    pub fn frame_of_peer(packet: &[u8]) -> Vec<u8> {
        // Longer ones wrap, and are malformed.
        let len = (packet.len() as u16).wrapping_add(8).to_be_bytes();
        let address = [[0xfd].as_slice(), &[0; 15]].concat();
        let (mac, own) = ([0, 0, 0, 0, 0, 1], Profile::minimal().mac);
        let ipv6 = [[0x60, 0, 0, 0].as_slice(), &len, &[17, 64], &address, &address].concat();
        let udp = [[0xc0, 0, 0x12, 0xb7].as_slice(), &len, &[0, 0]].concat();
        [&own, &mac, [0x86, 0xdd].as_slice(), &ipv6, &udp, packet].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hand_made_send_and_a_hand_made_frame_arrive() {
        let mut host = Host::new();
        host.objects();
        host.enable_roce();
        // A NOP.
        host.put(SEND_QUEUE, &[0, 0, 0, 0, 0, 0, 0x40, 1]);
        host.ring_send(1);
        assert_eq!(host.nic.data_plane.counters.send_wqes, 1);
        host.nic.data_plane.set_icrc(ferroce_nic_model::wire::Icrc::Off);
        // SEND only, of nothing: no receive is posted, which is answered.
        let packet = [
            [4, 0, 0xff, 0xff].as_slice(),
            &[0, 0, 0, 0x40],
            &[0x80, 0, 0, 0],
            &[0; 4],
        ]
        .concat();
        let received = host.nic.data_plane.transport_counters().packets_received;
        host.receive(Host::frame_of_peer(&packet));
        let counters = host.nic.data_plane.counters;
        let now = host.nic.data_plane.transport_counters().packets_received;
        assert!(now > received, "{counters:?}");
    }
}
