#pragma once
// Where each kernel file offers its part of the table. Private to this room.

#include "kernels/kernels.h"

namespace k3::kernels {

ElementwiseKernels MakeElementwiseKernels(SimdTarget target);
using DirectKernel = decltype(LinearKernels::direct);
DirectKernel MakeDirectKernel(SimdTarget target);
using WeightedRowsKernel = decltype(LinearKernels::weighted_rows);
WeightedRowsKernel MakeWeightedRowsKernel(SimdTarget target);
LinearKernels MakeLinearKernels(SimdTarget target);
MatMulKernels MakeMatMulKernels(SimdTarget target);
KdaKernels MakeKdaKernels(SimdTarget target);
BackwardKernels MakeBackwardKernels(SimdTarget target);
KdaBackwardKernels MakeKdaBackwardKernels(SimdTarget target);

}  // namespace k3::kernels
