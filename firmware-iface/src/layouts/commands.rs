//! Which layouts a command's input and output have.

use super::*;
use crate::layout::{Layout, LayoutInfo};
use crate::opcode::Opcode;

macro_rules! commands {
    ($( $opcode:ident $name:ident; )*) => { pastey::paste! {
        /// Layouts of a command's input and output; `None` for a command that none is declared of here.
        ///
        /// Inputs and outputs may be longer than their layout, by a list or a capability, and older drivers leave out
        /// the end of some.
        pub fn of_command(opcode: Opcode) -> Option<(&'static LayoutInfo, &'static LayoutInfo)> {
            match opcode {
                $( Opcode::$opcode => Some(([<$name In>]::INFO, [<$name Out>]::INFO)), )*
                _ => None,
            }
        }
    } };
}

commands! {
    QUERY_HCA_CAP QueryHcaCap;
    QUERY_ADAPTER QueryAdapter;
    INIT_HCA InitHca;
    TEARDOWN_HCA TeardownHca;
    ENABLE_HCA EnableHca;
    DISABLE_HCA DisableHca;
    QUERY_PAGES QueryPages;
    MANAGE_PAGES ManagePages;
    SET_HCA_CAP SetHcaCap;
    QUERY_ISSI QueryIssi;
    SET_ISSI SetIssi;
    SET_DRIVER_VERSION SetDriverVersion;
    CREATE_MKEY CreateMkey;
    QUERY_MKEY QueryMkey;
    DESTROY_MKEY DestroyMkey;
    QUERY_SPECIAL_CONTEXTS QuerySpecialContexts;
    CREATE_EQ CreateEq;
    DESTROY_EQ DestroyEq;
    QUERY_EQ QueryEq;
    CREATE_CQ CreateCq;
    DESTROY_CQ DestroyCq;
    QUERY_CQ QueryCq;
    MODIFY_CQ ModifyCq;
    CREATE_QP CreateQp;
    DESTROY_QP DestroyQp;
    RST2INIT_QP Rst2initQp;
    INIT2INIT_QP Init2initQp;
    INIT2RTR_QP Init2rtrQp;
    RTR2RTS_QP Rtr2rtsQp;
    RTS2RTS_QP Rts2rtsQp;
    SQERR2RTS_QP Sqerr2rtsQp;
    SQD2RTS_QP Sqd2rtsQp;
    QP_2ERR Qp2err;
    QP_2RST Qp2rst;
    QUERY_QP QueryQp;
    CREATE_SRQ CreateSrq;
    DESTROY_SRQ DestroySrq;
    QUERY_SRQ QuerySrq;
    ARM_RQ ArmRq;
    CREATE_XRC_SRQ CreateXrcSrq;
    DESTROY_XRC_SRQ DestroyXrcSrq;
    QUERY_XRC_SRQ QueryXrcSrq;
    ARM_XRC_SRQ ArmXrcSrq;
    CREATE_RMP CreateRmp;
    DESTROY_RMP DestroyRmp;
    MODIFY_RMP ModifyRmp;
    QUERY_RMP QueryRmp;
    QUERY_VPORT_STATE QueryVportState;
    MODIFY_VPORT_STATE ModifyVportState;
    QUERY_NIC_VPORT_CONTEXT QueryNicVportContext;
    MODIFY_NIC_VPORT_CONTEXT ModifyNicVportContext;
    QUERY_HCA_VPORT_PKEY QueryHcaVportPkey;
    QUERY_VPORT_COUNTER QueryVportCounter;
    QUERY_ROCE_ADDRESS QueryRoceAddress;
    SET_ROCE_ADDRESS SetRoceAddress;
    SET_L2_TABLE_ENTRY SetL2TableEntry;
    QUERY_L2_TABLE_ENTRY QueryL2TableEntry;
    DELETE_L2_TABLE_ENTRY DeleteL2TableEntry;
    ALLOC_Q_COUNTER AllocQCounter;
    DEALLOC_Q_COUNTER DeallocQCounter;
    QUERY_Q_COUNTER QueryQCounter;
    ALLOC_PD AllocPd;
    DEALLOC_PD DeallocPd;
    ALLOC_UAR AllocUar;
    DEALLOC_UAR DeallocUar;
    ACCESS_REG AccessRegister;
    ATTACH_TO_MCG AttachToMcg;
    DETACH_FROM_MCG DetachFromMcg;
    ALLOC_XRCD AllocXrcd;
    DEALLOC_XRCD DeallocXrcd;
    ALLOC_TRANSPORT_DOMAIN AllocTransportDomain;
    DEALLOC_TRANSPORT_DOMAIN DeallocTransportDomain;
    CREATE_TIR CreateTir;
    MODIFY_TIR ModifyTir;
    DESTROY_TIR DestroyTir;
    CREATE_SQ CreateSq;
    MODIFY_SQ ModifySq;
    DESTROY_SQ DestroySq;
    QUERY_SQ QuerySq;
    CREATE_RQ CreateRq;
    MODIFY_RQ ModifyRq;
    DESTROY_RQ DestroyRq;
    QUERY_RQ QueryRq;
    CREATE_TIS CreateTis;
    MODIFY_TIS ModifyTis;
    DESTROY_TIS DestroyTis;
    CREATE_RQT CreateRqt;
    MODIFY_RQT ModifyRqt;
    DESTROY_RQT DestroyRqt;
    SET_FLOW_TABLE_ROOT SetFlowTableRoot;
    CREATE_FLOW_TABLE CreateFlowTable;
    DESTROY_FLOW_TABLE DestroyFlowTable;
    MODIFY_FLOW_TABLE ModifyFlowTable;
    CREATE_FLOW_GROUP CreateFlowGroup;
    DESTROY_FLOW_GROUP DestroyFlowGroup;
    SET_FLOW_TABLE_ENTRY SetFte;
    DELETE_FLOW_TABLE_ENTRY DeleteFte;
    ALLOC_FLOW_COUNTER AllocFlowCounter;
    DEALLOC_FLOW_COUNTER DeallocFlowCounter;
    QUERY_CONG_STATUS QueryCongStatus;
    MODIFY_CONG_STATUS ModifyCongStatus;
    QUERY_CONG_PARAMS QueryCongParams;
    MODIFY_CONG_PARAMS ModifyCongParams;
    QUERY_CONG_STATISTICS QueryCongStatistics;
    CREATE_UCTX CreateUctx;
    DESTROY_UCTX DestroyUctx;
    CREATE_UMEM CreateUmem;
    DESTROY_UMEM DestroyUmem;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_start_with_the_opcode_and_outputs_with_the_status() {
        let mut commands = 0;
        for opcode in Opcode::ALL {
            let Some((input, output)) = of_command(*opcode) else {
                continue;
            };
            commands += 1;
            let first = |info: &LayoutInfo| info.fields.first().map(|f| (f.name, f.bit_offset, f.bit_width));
            assert_eq!(first(input), Some(("opcode", 0, 16)), "{opcode}");
            assert_eq!(first(output), Some(("status", 0, 8)), "{opcode}");
            assert!(input.name.ends_with("_in") && output.name.ends_with("_out"));
            let stem = |name: &'static str, end| name.strip_suffix(end);
            assert_eq!(stem(input.name, "_in"), stem(output.name, "_out"), "{opcode}");
        }
        assert!(commands > 90, "{commands}");
        assert!(of_command(Opcode(0xffff)).is_none());
    }
}
